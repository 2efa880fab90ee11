module {
	func.func @sdsc_bundle(%arg_0_base_addr: !sdscbundle.input_arg<index>, %arg_1_base_addr: !sdscbundle.input_arg<index>, %arg_2_base_addr: !sdscbundle.input_arg<index>) {
		%arg_0 = sdscbundle.input_arg_extract value from %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_1 = sdscbundle.input_arg_extract value from %arg_1_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_2 = sdscbundle.input_arg_extract value from %arg_2_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_0_core_offset_16384 = arith.constant 16384 : index
		%arg_0_core_16384 = arith.addi %arg_0, %arg_0_core_offset_16384 : index
		%arg_0_core_offset_32768 = arith.constant 32768 : index
		%arg_0_core_32768 = arith.addi %arg_0, %arg_0_core_offset_32768 : index
		%arg_0_core_offset_49152 = arith.constant 49152 : index
		%arg_0_core_49152 = arith.addi %arg_0, %arg_0_core_offset_49152 : index
		%arg_0_core_offset_65536 = arith.constant 65536 : index
		%arg_0_core_65536 = arith.addi %arg_0, %arg_0_core_offset_65536 : index
		%arg_0_core_offset_81920 = arith.constant 81920 : index
		%arg_0_core_81920 = arith.addi %arg_0, %arg_0_core_offset_81920 : index
		%arg_0_core_offset_98304 = arith.constant 98304 : index
		%arg_0_core_98304 = arith.addi %arg_0, %arg_0_core_offset_98304 : index
		%arg_0_core_offset_114688 = arith.constant 114688 : index
		%arg_0_core_114688 = arith.addi %arg_0, %arg_0_core_offset_114688 : index
		%arg_2_core_offset_16384 = arith.constant 16384 : index
		%arg_2_core_16384 = arith.addi %arg_2, %arg_2_core_offset_16384 : index
		%arg_2_core_offset_32768 = arith.constant 32768 : index
		%arg_2_core_32768 = arith.addi %arg_2, %arg_2_core_offset_32768 : index
		%arg_2_core_offset_49152 = arith.constant 49152 : index
		%arg_2_core_49152 = arith.addi %arg_2, %arg_2_core_offset_49152 : index
		%arg_2_core_offset_65536 = arith.constant 65536 : index
		%arg_2_core_65536 = arith.addi %arg_2, %arg_2_core_offset_65536 : index
		%arg_2_core_offset_81920 = arith.constant 81920 : index
		%arg_2_core_81920 = arith.addi %arg_2, %arg_2_core_offset_81920 : index
		%arg_2_core_offset_98304 = arith.constant 98304 : index
		%arg_2_core_98304 = arith.addi %arg_2, %arg_2_core_offset_98304 : index
		%arg_2_core_offset_114688 = arith.constant 114688 : index
		%arg_2_core_114688 = arith.addi %arg_2, %arg_2_core_offset_114688 : index
		sdscbundle.sdsc_execute (%arg_0, %arg_0_core_16384, %arg_0_core_32768, %arg_0_core_49152, %arg_0_core_65536, %arg_0_core_81920, %arg_0_core_98304, %arg_0_core_114688, %arg_1, %arg_2, %arg_2_core_16384, %arg_2_core_32768, %arg_2_core_49152, %arg_2_core_65536, %arg_2_core_81920, %arg_2_core_98304, %arg_2_core_114688) {sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13, -14, -15, -16, -17]}
		return
	}
}
