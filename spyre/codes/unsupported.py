"""Causes and fixes of SPY5xx: valid, but not simulated."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

UNSUPPORTED_EXPLANATIONS: dict[str, E] = {
    "SPY501": E(
        "An SDSC may hold several DSCs, of which cores run different ones.",
        "Write one DSC per SDSC file.",
    ),
    "SPY502": E(
        "A DSC may fuse several operations.", "Write one operation per DSC, in files of their own."
    ),
    "SPY503": E(
        "The SDSC moves data by data ops instead of an operation.", "Use an identity operation."
    ),
    "SPY504": E(
        "The core or corelet folds divide the work over time.", "Use time folds of 1, and a loop."
    ),
    "SPY505": E("A core's schedule holds other steps than its one DSC.", "Write [[-1, 0, 0, 0]]."),
    "SPY508": E(
        "The last step is of another size than the others (el_ differs from ss_).",
        "Choose slices that divide the extent.",
    ),
    "SPY509": E(
        "ldsShareInfo_ shares tensors between DSCs with unequal work.",
        "Give each DSC its own tensors.",
    ),
    "SPY510": E("Gaps differ from core to core.", "Use the same gaps on all cores."),
    "SPY511": E("Constants differ from core to core.", "Use the same constants on all cores."),
    "SPY512": E(
        "Start addresses vary with corelet or time, not only with the core.",
        "Give one address per core.",
    ),
    "SPY513": E(
        "An index tensor holds addresses instead of indices.", "Store indices into the table."
    ),
    "SPY515": E(
        "A symbolic dim is used in a place where its size has to be known before the launch.",
        "Compile for fixed extents, or make another dim symbolic.",
    ),
    "SPY516": E("A stick holds copies of its elements.", "Store each element once."),
    "SPY517": E(
        "A tensor is divided over cores in another way than the operation.",
        "Divide both alike, or copy the tensor with a shuffle first.",
    ),
    "SPY520": E(
        "The operation is not in the op table, or not in this form.",
        "Use an operation of the operations page.",
    ),
    "SPY521": E("A stick packs elements of several dims.", "Use a layout with one stick dim."),
    "SPY522": E(
        "The operation does not compute in this format, or its elements are of another width.",
        "Convert to SEN169_FP16, or IEEE_FP32 where the operation takes it.",
    ),
    "SPY523": E(
        "Cores that reduce together have starts that follow no regular steps, or different output "
        "addresses.",
        "Give them one output address in HBM, and evenly spaced inputs.",
    ),
    "SPY524": E(
        "More than one interval of coordinates is masked.", "Mask one interval of one dim."
    ),
    "SPY525": E(
        "Reduced dims lie apart in memory in too many places.",
        "Reduce in several steps, or lay the dims next to each other.",
    ),
    "SPY526": E("Indices choose elements within sticks.", "Index another dim than the stick's."),
    "SPY527": E(
        "A core's share of the index tensor starts within a stick.",
        "Split the indices by whole sticks of 32.",
    ),
    "SPY528": E(
        "The host's dtype and the device format are float on one side and integer on the other.",
        "Give the tensor in a dtype of the same kind.",
    ),
    "SPY529": E(
        "The layout has more device dims than a copy can walk.",
        "Merge dims, or copy the tensor in parts.",
    ),
    "SPY530": E("The number mode is unknown.", "Use dl16 or ieee (--numerics, SPYRE_NUMERICS)."),
    "SPY533": E(
        "Indices choose from tensors that every core has of its own in HBM.",
        "Use one table for all cores.",
    ),
    "SPY534": E(
        "The last work slice is shorter than the others, in an operation that cannot have that.",
        "Choose slices that divide the extent.",
    ),
    "SPY540": E(
        "The text form of the number mode has an option that does not exist.",
        "Use the options that the message lists.",
    ),
    "SPY541": E(
        "The option concerns DL16, and the mode has no DL16.",
        "Leave the option out, or use dl16 or dl16-chunk.",
    ),
    "SPY542": E(
        "dl16-chunk accumulates in DL16, which this operation does not do.",
        "Run the program in mode dl16.",
    ),
    "SPY545": E(
        "A core has only part of a window, so that its results would have to be combined.",
        "Split the other dims.",
    ),
    "SPY546": E(
        "A split divides the windowed input inside of a stick, or leaves cores without the padding "
        "their windows need.",
        "Split the dim evenly, or another one.",
    ),
    "SPY547": E(
        "The input is stored unfolded, one copy per window.",
        "Store the input once, and let the windows overlap.",
    ),
    "SPY548": E(
        "Windows or padding stand on an operand or dim where the operation has none.",
        "Follow the message; only the input of windowed operations slides.",
    ),
    "SPY549": E(
        "The operation does not replace masked coordinates.",
        "Mask in an operation before it.",
    ),
    "SPY550": E(
        "The operation has more dims or larger extents than its plan has room for.",
        "Merge dims, or divide the operation.",
    ),
    "SPY555": E(
        "The specification lists the operation, but nobody has published what it computes.",
        "Use operations with a public definition.",
    ),
    "SPY531": E("A top-k selects over what several cores hold.", "Split the other dims instead."),
    "SPY532": E(
        "Indices are used by an operation that computes, or several index tensors at once.",
        "Gather with an identity first, then compute.",
    ),
}
