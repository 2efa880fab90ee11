module {
	func.func @sdsc_bundle() {
		sdscbundle.sdsc_execute () {sdsc_filename="sdsc_0.json", "symbol_ids"=[]}
		sdscbundle.sdsc_execute () {sdsc_filename="sdsc_1.json", "symbol_ids"=[]}
		sdscbundle.sdsc_execute () {sdsc_filename="sdsc_2.json", "symbol_ids"=[]}
		sdscbundle.sdsc_execute () {sdsc_filename="sdsc_3.json", "symbol_ids"=[]}
		sdscbundle.sdsc_execute () {sdsc_filename="sdsc_4.json", "symbol_ids"=[]}
		sdscbundle.sdsc_execute () {sdsc_filename="sdsc_5.json", "symbol_ids"=[]}
		sdscbundle.sdsc_execute () {sdsc_filename="sdsc_6.json", "symbol_ids"=[]}
		sdscbundle.sdsc_execute () {sdsc_filename="sdsc_7.json", "symbol_ids"=[]}
		sdscbundle.sdsc_execute () {sdsc_filename="sdsc_8.json", "symbol_ids"=[]}
		return
	}
}
