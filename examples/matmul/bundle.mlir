module {
	func.func @sdsc_bundle(%arg_0_base_addr: !sdscbundle.input_arg<index>, %arg_1_base_addr: !sdscbundle.input_arg<index>, %arg_2_base_addr: !sdscbundle.input_arg<index>) {
		%arg_0 = sdscbundle.input_arg_extract value from %arg_0_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_1 = sdscbundle.input_arg_extract value from %arg_1_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_2 = sdscbundle.input_arg_extract value from %arg_2_base_addr : !sdscbundle.input_arg<index> -> index
		%arg_0_core_offset_32768 = arith.constant 32768 : index
		%arg_0_core_32768 = arith.addi %arg_0, %arg_0_core_offset_32768 : index
		%arg_0_core_offset_4096 = arith.constant 4096 : index
		%arg_0_core_4096 = arith.addi %arg_0, %arg_0_core_offset_4096 : index
		%arg_0_core_offset_36864 = arith.constant 36864 : index
		%arg_0_core_36864 = arith.addi %arg_0, %arg_0_core_offset_36864 : index
		%arg_0_core_offset_8192 = arith.constant 8192 : index
		%arg_0_core_8192 = arith.addi %arg_0, %arg_0_core_offset_8192 : index
		%arg_0_core_offset_40960 = arith.constant 40960 : index
		%arg_0_core_40960 = arith.addi %arg_0, %arg_0_core_offset_40960 : index
		%arg_0_core_offset_12288 = arith.constant 12288 : index
		%arg_0_core_12288 = arith.addi %arg_0, %arg_0_core_offset_12288 : index
		%arg_0_core_offset_45056 = arith.constant 45056 : index
		%arg_0_core_45056 = arith.addi %arg_0, %arg_0_core_offset_45056 : index
		%arg_1_core_offset_16384 = arith.constant 16384 : index
		%arg_1_core_16384 = arith.addi %arg_1, %arg_1_core_offset_16384 : index
		%arg_2_core_offset_4096 = arith.constant 4096 : index
		%arg_2_core_4096 = arith.addi %arg_2, %arg_2_core_offset_4096 : index
		%arg_2_core_offset_8192 = arith.constant 8192 : index
		%arg_2_core_8192 = arith.addi %arg_2, %arg_2_core_offset_8192 : index
		%arg_2_core_offset_12288 = arith.constant 12288 : index
		%arg_2_core_12288 = arith.addi %arg_2, %arg_2_core_offset_12288 : index
		sdscbundle.sdsc_execute (%arg_0, %arg_0_core_32768, %arg_0_core_4096, %arg_0_core_36864, %arg_0_core_8192, %arg_0_core_40960, %arg_0_core_12288, %arg_0_core_45056, %arg_1, %arg_1_core_16384, %arg_2, %arg_2_core_4096, %arg_2_core_8192, %arg_2_core_12288) {sdsc_filename="sdsc_0.json", "symbol_ids"=[-1, -2, -3, -4, -5, -6, -7, -8, -9, -10, -11, -12, -13, -14]}
		return
	}
}
