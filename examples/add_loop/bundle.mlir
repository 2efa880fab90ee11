#map_0 = affine_map<(d0)[s0] -> (s0 + 8192*d0)>
module {
	func.func @sdsc_bundle(%arg_0_base_addr: !sdscbundle.input_arg<index>, %arg_1_base_addr: !sdscbundle.input_arg<index>, %arg_2_base_addr: !sdscbundle.input_arg<index>) {
		%arg_0 = sdscbundle.input_arg_extract value from %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_1 = sdscbundle.input_arg_extract value from %arg_1_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_2 = sdscbundle.input_arg_extract value from %arg_2_base_addr : !sdscbundle.input_arg<index> -> index
		%c0 = arith.constant 0 : index
		%c1 = arith.constant 1 : index
		%loop_bound_0 = arith.constant 4 : index
		%arg_0_core_offset_2048 = arith.constant 2048 : index
		%arg_0_core_2048 = arith.addi %arg_0, %arg_0_core_offset_2048 : index
		%arg_0_core_offset_4096 = arith.constant 4096 : index
		%arg_0_core_4096 = arith.addi %arg_0, %arg_0_core_offset_4096 : index
		%arg_0_core_offset_6144 = arith.constant 6144 : index
		%arg_0_core_6144 = arith.addi %arg_0, %arg_0_core_offset_6144 : index
		%arg_1_core_offset_2048 = arith.constant 2048 : index
		%arg_1_core_2048 = arith.addi %arg_1, %arg_1_core_offset_2048 : index
		%arg_1_core_offset_4096 = arith.constant 4096 : index
		%arg_1_core_4096 = arith.addi %arg_1, %arg_1_core_offset_4096 : index
		%arg_1_core_offset_6144 = arith.constant 6144 : index
		%arg_1_core_6144 = arith.addi %arg_1, %arg_1_core_offset_6144 : index
		%arg_2_core_offset_2048 = arith.constant 2048 : index
		%arg_2_core_2048 = arith.addi %arg_2, %arg_2_core_offset_2048 : index
		%arg_2_core_offset_4096 = arith.constant 4096 : index
		%arg_2_core_4096 = arith.addi %arg_2, %arg_2_core_offset_4096 : index
		%arg_2_core_offset_6144 = arith.constant 6144 : index
		%arg_2_core_6144 = arith.addi %arg_2, %arg_2_core_offset_6144 : index
		scf.for %i_0 = %c0 to %loop_bound_0 step %c1 {
			%addr_0 = affine.apply #map_0(%i_0)[%arg_0]
			%addr_1 = affine.apply #map_0(%i_0)[%arg_0_core_2048]
			%addr_2 = affine.apply #map_0(%i_0)[%arg_0_core_4096]
			%addr_3 = affine.apply #map_0(%i_0)[%arg_0_core_6144]
			%addr_4 = affine.apply #map_0(%i_0)[%arg_1]
			%addr_5 = affine.apply #map_0(%i_0)[%arg_1_core_2048]
			%addr_6 = affine.apply #map_0(%i_0)[%arg_1_core_4096]
			%addr_7 = affine.apply #map_0(%i_0)[%arg_1_core_6144]
			%addr_8 = affine.apply #map_0(%i_0)[%arg_2]
			%addr_9 = affine.apply #map_0(%i_0)[%arg_2_core_2048]
			%addr_10 = affine.apply #map_0(%i_0)[%arg_2_core_4096]
			%addr_11 = affine.apply #map_0(%i_0)[%arg_2_core_6144]
			sdscbundle.sdsc_execute (%addr_0, %addr_1, %addr_2, %addr_3, %addr_4, %addr_5, %addr_6, %addr_7, %addr_8, %addr_9, %addr_10, %addr_11) {sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12]}
		}
		return
	}
}
