"""Causes and fixes of SPY3xx: launch_spec.json, layouts, tensor files, cases and dumps."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

LAUNCH_EXPLANATIONS: dict[str, E] = {
    "SPY301": E("The file is there, but cannot be opened or written.", "Check its permissions."),
    "SPY302": E(
        "The file is no JSON, or a value at the path is not what version 1 of the schema says.",
        "Correct the value; the torch backend writes valid files.",
    ),
    "SPY303": E("The file was written for a later version of spyre.", "Update spyre."),
    "SPY310": E(
        "A layout names a number format that the card does not have.",
        "Use one of the formats listed.",
    ),
    "SPY311": E(
        "The torch dtype has no counterpart on the card.",
        "Convert the tensor to a dtype of the list.",
    ),
    "SPY312": E(
        "The format exists on the card, but nobody has published how it is stored.",
        "Use a format with a defined storage.",
    ),
    "SPY320": E(
        "device_size and stride_map differ in length, hold impossible numbers, or the element "
        "arrangement is unknown.",
        "Correct the layout's fields.",
    ),
    "SPY321": E(
        "Host sizes, strides and dim order were given that do not belong together.",
        "Give one size and stride per dim, and every dim once in the order.",
    ),
    "SPY322": E(
        "No host dim has the stride that a device dim walks, or host elements have no place on "
        "the device.",
        "Compute the layout for these sizes and strides; give --strides for transposed tensors.",
    ),
    "SPY323": E(
        "The elements lie in an order that copies between host and card do not undo.",
        "Convert the tensor on the card before it is copied.",
    ),
    "SPY324": E(
        "A buffer given for a copy is smaller than the tensor it should hold.",
        "Allocate the bytes of the layout.",
    ),
    "SPY330": E(
        "The file does not exist, or is damaged.", "Correct the path, or save the tensor again."
    ),
    "SPY331": E(
        "The suffix says no known kind of file, or needs torch, which is not installed.",
        "Use .npy, .npz, .bin, or .pt with torch.",
    ),
    "SPY332": E(
        "The archive has no array of that key, a raw file comes without shape, or a .pt holds "
        "something else than tensors.",
        "Name a key of the file; give raw files for arguments with a known shape.",
    ),
    "SPY333": E(
        "A tensor has another shape than its argument.",
        "Give tensors in argument order, with the shapes of launch_spec.json.",
    ),
    "SPY334": E(
        "A tensor has another dtype than its argument; numbers are never converted silently.",
        "Convert it; float32 is accepted for bfloat16 and float8 if no number changes.",
    ),
    "SPY335": E(
        "The file holds pickled objects, which could run code when loaded.",
        "Save plain tensors.",
    ),
    "SPY336": E(
        ".npy and .bin hold one tensor, and there are several; or names are not distinct.",
        "Save to .npz or .pt.",
    ),
    "SPY337": E("The text is no shape.", "Write 10x512@fp16, or scalar@fp32."),
    "SPY360": E(
        "Memory is freed that was not allocated, or has been freed before.",
        "Free each address once, as allocate gave it.",
    ),
    "SPY361": E(
        "bundle.mlir takes a pool address, and launch_spec.json has pool_size 0.",
        "Give pool_size the bytes that the intermediates need.",
    ),
    "SPY362": E(
        "A parameter is no argument's or pool's address, and no value is given for it.",
        "Give it with --value NAME=N.",
    ),
    "SPY363": E(
        "The program, or an option, speaks of an argument that the launch does not have; baked "
        "addresses name arguments by their segment.",
        "List the argument in launch_spec.json, or correct the index or address.",
    ),
    "SPY364": E(
        "There is no launch_spec.json, so shapes follow from the SDSC files: whole sticks, "
        "row-major, and nothing to check them with.",
        "Copy launch_spec.json beside bundle.mlir, or give --shape.",
    ),
    "SPY365": E(
        "A shape given is not the one in launch_spec.json, or does not fill the argument's memory.",
        "Give one shape per input, or none.",
    ),
    "SPY366": E(
        "A shape in launch_spec.json holds a name whose size is known at launch only.",
        "Give it with --value NAME=N.",
    ),
    "SPY367": E(
        "There are more or fewer inputs than arguments the kernel reads, or unknown names.",
        "Give one tensor per input, in-place arguments included.",
    ),
    "SPY368": E(
        "Without launch_spec.json the argument's format does not say what it is on the host.",
        "Add launch_spec.json.",
    ),
    "SPY369": E(
        "There are more or fewer expected tensors than arguments the kernel writes.",
        "Give one tensor per output, in-place arguments included.",
    ),
    "SPY370": E("The directory does not exist or may not be written.", "Save to another place."),
    "SPY371": E(
        "case.json is no JSON, names buffers, arrays or options that do not exist, or holds views "
        "outside of their buffers.",
        "Correct case.json, or dump the case again.",
    ),
    "SPY372": E(
        "The runtime size given is not one that the SDSC's symbolic dim allows.",
        "Give a size within the dim's maximum, of its granularity.",
    ),
    "SPY380": E(
        "The directory exists and was not written by a dump; it might hold something of value.",
        "Name a new directory, or remove the old one.",
    ),
    "SPY381": E(
        "The directory cannot be made, or the disk is full; nothing is left behind.",
        "Dump to another place.",
    ),
    "SPY382": E(
        "The shapes of the arguments are larger than this host's memory, often by a typing error.",
        "Correct the shape in launch_spec.json or --shape.",
    ),
}
