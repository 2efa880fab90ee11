"""Causes and fixes of SPY870-899: jobs, streams, events, scheduler."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

STREAM_EXPLANATIONS: dict[str, E] = {
    "SPY870": E(
        "Something in the stream failed before; its error was raised by synchronize or query.",
        "Use another stream, or reset the device, which makes all streams usable again.",
    ),
    "SPY871": E(
        "The stream waits for an event that was recorded in a stream which has failed, so what it "
        "depends on was never computed.",
        "Find the error of the other stream; reset the device to go on.",
    ),
    "SPY872": E(
        "Streams are known by ids that were handed out: 0, and those of streams taken from a pool.",
        "Take the stream from its pool first.",
    ),
    "SPY873": E(
        "Tensors of one launch, or a tensor and the values given, disagree about a runtime size "
        "that launch_spec.json names.",
        "Give tensors whose shapes agree.",
    ),
    "SPY875": E(
        "One of the events was made without timing, was never recorded or is not complete.",
        "Make both with enable_timing, record them, and synchronize the second.",
    ),
    "SPY876": E("A plan without steps does nothing.", "Give it at least one step."),
    "SPY877": E("Steps are numbered from 0.", "Ask for an index below num_steps()."),
    "SPY878": E(
        "A launch takes one tensor per argument of the kernel, in launch order.",
        "Give all of them, outputs too; the pool is the kernel's own.",
    ),
    "SPY879": E(
        "A kernel can only reach memory of the card it is loaded on.",
        "Copy the tensor to that card.",
    ),
    "SPY881": E(
        "Something wrote over the kernel's binary in program memory (segment 7).",
        "Look for raw writes to segment 7; prepare the kernel again.",
    ),
    "SPY882": E(
        "The instruction was never added, or was removed before.",
        "Remove the object that was added.",
    ),
    "SPY884": E(
        "spyrecode.json gives the correction tensor a size that does not follow from the program: "
        "8 bytes per parameter of bundle.mlir, whole sticks.",
        "Compile the bundle again with spyre-compile.",
    ),
    "SPY885": E(
        "The execution plan has steps that only the closed runtime knows how to run.",
        "Compile the bundle with spyre-compile, whose plans are run.",
    ),
    "SPY886": E(
        "The directory is missing or may not be written, or the name is that of something other "
        "than a file.",
        "Give --trace a file name in a directory of yours.",
    ),
    "SPY887": E(
        "The case was recorded with --verify, where launches run beside the reference "
        "implementation and their executes are not timed; a trace is made of those times.",
        "Take verify out of the run section of case.json, or leave out --trace.",
    ),
    "SPY883": E(
        "AIU_WORLD_SIZE and SPYRE_DEVICES say how many cards there are.",
        "Ask for an index below their number, or make more cards visible.",
    ),
}
