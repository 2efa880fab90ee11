#map_0 = affine_map<(d0, d1)[s0] -> (s0 + 16384*d0 + 131072*d1)>
module {
	func.func @sdsc_bundle(%pool_base_addr: !sdscbundle.input_arg<index>, %arg_0_base_addr: !sdscbundle.input_arg<index>, %arg_1_base_addr: !sdscbundle.input_arg<index>) {
		%pool = sdscbundle.input_arg_extract value from %pool_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_0 = sdscbundle.input_arg_extract value from %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_1 = sdscbundle.input_arg_extract value from %arg_1_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_0_core_offset_16384 = arith.constant 16384 : index
		%arg_0_core_16384 = arith.addi %arg_0, %arg_0_core_offset_16384 : index
		%arg_0_core_offset_32768 = arith.constant 32768 : index
		%arg_0_core_32768 = arith.addi %arg_0, %arg_0_core_offset_32768 : index
		%arg_0_core_offset_49152 = arith.constant 49152 : index
		%arg_0_core_49152 = arith.addi %arg_0, %arg_0_core_offset_49152 : index
		%pool_offset_16384 = arith.constant 16384 : index
		%pool_addr_16384 = arith.addi %pool, %pool_offset_16384 : index
		%pool_offset_32768 = arith.constant 32768 : index
		%pool_addr_32768 = arith.addi %pool, %pool_offset_32768 : index
		%pool_offset_49152 = arith.constant 49152 : index
		%pool_addr_49152 = arith.addi %pool, %pool_offset_49152 : index
		%c0 = arith.constant 0 : index
		%c1 = arith.constant 1 : index
		%loop_bound_0 = arith.constant 4 : index
		%loop_bound_1 = arith.constant 2 : index
		%arg_0_core_offset_8192 = arith.constant 8192 : index
		%arg_0_core_8192 = arith.addi %arg_0, %arg_0_core_offset_8192 : index
		%pool_offset_8192 = arith.constant 8192 : index
		%pool_addr_8192 = arith.addi %pool, %pool_offset_8192 : index
		%arg_1_core_offset_8192 = arith.constant 8192 : index
		%arg_1_core_8192 = arith.addi %arg_1, %arg_1_core_offset_8192 : index
		sdscbundle.sdsc_execute (%arg_0, %arg_0_core_16384, %arg_0_core_32768, %arg_0_core_49152, %pool, %pool_addr_16384, %pool_addr_32768, %pool_addr_49152) {sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2, -3, -4, -5, -6, -7, -8]}
		scf.for %i_0 = %c0 to %loop_bound_0 step %c1 {
			scf.for %i_1 = %c0 to %loop_bound_1 step %c1 {
				%addr_0 = affine.apply #map_0(%i_0, %i_1)[%arg_0]
				%addr_1 = affine.apply #map_0(%i_0, %i_1)[%arg_0_core_8192]
				%addr_2 = affine.apply #map_0(%i_0, %i_1)[%pool]
				%addr_3 = affine.apply #map_0(%i_0, %i_1)[%pool_addr_8192]
				%addr_4 = affine.apply #map_0(%i_0, %i_1)[%arg_1]
				%addr_5 = affine.apply #map_0(%i_0, %i_1)[%arg_1_core_8192]
				sdscbundle.sdsc_execute (%addr_0, %addr_1, %addr_2, %addr_3, %addr_4, %addr_5) {sdsc_filename="sdsc_1.json", "symbol_ids"=[-9, -10, -11, -12, -13, -14]}
			}
		}
		return
	}
}
