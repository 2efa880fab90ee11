#map_0 = affine_map<(d0, d1)[s0] -> (s0 + d0*65536 + d1*2097152)>
module {
	func.func @sdsc_bundle(%arg_0_base_addr: !sdscbundle.input_arg<index>, %rows: !sdscbundle.input_arg<index, granularity=64, max_value=512>, %k: index) {
		%arg_0 = sdscbundle.input_arg_extract value from %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
		%c0 = arith.constant 0 : index
		%c1 = arith.constant 1 : index
		%c4 = arith.constant 4 : index
		%pool = sdscbundle.device_mem_allocate 1048576 bytes : index
		%pool_128 = arith.addi %pool, %c4 : index
		scf.for %i_0 = %c0 to %c4 step %c1 {
			scf.for %i_1 = %c0 to %c4 step %c1 {
				%addr_0 = affine.apply #map_0(%i_0, %i_1)[%arg_0]
				sdscbundle.sdsc_execute (%addr_0) {sdsc_filename="sdsc \"0\"\n.json", "symbol_ids"=[-1], note = 3}
				sdscbundle.sdsc_execute () {sdsc_filename="sdsc_1.json", "symbol_ids"=[]}
			}
		}
		return
	}
}
