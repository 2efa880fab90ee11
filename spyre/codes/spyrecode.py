"""Causes and fixes of SPY820-849: SpyreCode directories and kept plans."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

SPYRECODE_EXPLANATIONS: dict[str, E] = {
    "SPY820": E(
        "The path names nothing, or a file.",
        "Give the spyreCodeDir that spyre-compile wrote.",
    ),
    "SPY821": E(
        "The directory was never compiled, or the compiler was stopped: spyrecode.json is "
        "written last.",
        "Run spyre-compile --bundle -d DIR.",
    ),
    "SPY822": E(
        "The file is no JSON object, or cannot be read.",
        "Compile the bundle again.",
    ),
    "SPY823": E(
        "JobPreparationPlan or JobExecPlan is missing, or is no array.",
        "Compile the bundle again; both arrays have to be there.",
    ),
    "SPY824": E(
        "JobPreparationPlan holds less than an Allocate and an InitTransfer.",
        "Allocate the program's memory and name at least one binary.",
    ),
    "SPY825": E(
        "JobPreparationPlan has to be one Allocate, then InitTransfers only.",
        "Put the command into JobExecPlan, or in order.",
    ),
    "SPY826": E(
        "A property that the runtime reads is not there, or the command has no name.",
        "Add the property named; docs/spyrecode.md lists all of them.",
    ),
    "SPY827": E(
        "Numbers are decimal strings from 0 to 2⁶³ - 1, names are strings, file names stay "
        "inside the directory.",
        "Correct the value at the path.",
    ),
    "SPY828": E(
        "Programs and correction tensors live in segment 7, from 0x1C00000000 on.",
        "Give an address of the program's allocation.",
    ),
    "SPY829": E(
        "The card transfers whole sticks of 128 bytes.",
        "Round the address to a stick, and move what follows it.",
    ),
    "SPY830": E(
        "The bytes do not fit into the program's allocation, or into the host buffer.",
        "Allocate more, or transfer less.",
    ),
    "SPY831": E(
        "Two commands give a new buffer the same name.",
        "Give every ohandle, and every host_handle of a device-to-host transfer, its own name.",
    ),
    "SPY832": E(
        "No earlier command has this name as its ohandle.",
        "Correct the name, or put the command that makes the buffer first.",
    ),
    "SPY833": E(
        'The input shape of a ComputeOnHost is written as ["24"]; ["0"] stands for no input.',
        "Write every extent as a string.",
    ),
    "SPY834": E(
        "hcm, or one of its keys vdci, senConstants and symbols, has another type, or its "
        "symbols do not fit into the buffer.",
        "Compile the bundle again.",
    ),
    "SPY835": E(
        "JobExecPlan knows ComputeOnHost, DataTransfer and ComputeOnDevice.",
        "Correct the name; Allocate and InitTransfer belong into JobPreparationPlan.",
    ),
    "SPY836": E(
        "A plan that begins with ComputeOnHost goes on with a transfer of its buffer to the "
        "device, then computes.",
        "Put a DataTransfer behind every ComputeOnHost, and the first one before the first "
        "ComputeOnDevice.",
    ),
    "SPY837": E(
        "A transfer of the execution plan overwrites bytes of a binary that the preparation "
        "plan has put there.",
        "Place the correction tensor behind the binary.",
    ),
    "SPY838": E(
        'dirn is neither "false" nor "true", direction neither "0" nor "1".',
        'Write "false" for host to device, "true" for device to host.',
    ),
    "SPY840": E(
        "The bytes do not begin with a whole header, end too early, or are not those the "
        "header's digest was made of; or another compiler wrote them.",
        "Compile the bundle again; program memory may also have been overwritten.",
    ),
    "SPY841": E(
        "It was written for a later version of spyre.",
        "Update spyre, or compile the bundle again.",
    ),
    "SPY843": E(
        "Every line holds exactly 256 hexadecimal digits, but for comments that begin with #.",
        "Correct the line named.",
    ),
    "SPY844": E(
        "Its size or SHA-256 differs from what spyrecode.json records, or it is missing: "
        "changed by hand, or an interrupted copy.",
        "Compile the bundle again, or copy the whole directory.",
    ),
    "SPY845": E(
        "The host refused to make or replace a file.",
        "Check permissions and free space.",
    ),
    "SPY846": E(
        "The bundle has none, and shapes and dtypes of its arguments cannot be derived here.",
        "Write a launch_spec.json beside bundle.mlir; launches need the shapes otherwise.",
    ),
    "SPY847": E(
        "A command has both the key the runtime reads and the one of the specification, with "
        "different values.",
        "Keep one of them.",
    ),
}
