"""Causes and fixes of SPY2xx: SDSC files, the bundle's directory, and the builders."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

SDSC_EXPLANATIONS: dict[str, E] = {
    "SPY201": E(
        "The file is no JSON: cut off, not UTF-8, or with a stray character.",
        "Write the file again; the message names the byte.",
    ),
    "SPY202": E(
        "An object has a key twice; readers differ in which one they keep.",
        "Keep one of the two.",
    ),
    "SPY203": E(
        "A value has another JSON type than the format says, or a key that must be there is not.",
        "Correct the value at the path.",
    ),
    "SPY204": E(
        "An SDSC file is an object with one key, the SDSC's name; so is every DSC. There is none, "
        "or several.",
        "Keep one name per file, and one per DSC.",
    ),
    "SPY205": E(
        "A key is not part of the format as known. It is kept when the file is written, but "
        "nothing reads it.",
        "Remove it, or correct its spelling.",
    ),
    "SPY206": E(
        "Addresses and some extents are written as text and have to be plain decimal integers.",
        "Write decimal digits only: no 0x, no fraction.",
    ),
    "SPY207": E("dscs_ is empty, and there are no data ops either.", "Write one DSC."),
    "SPY208": E(
        "numCoresUsed_, coreIdsUsed_ and the lists per core speak of different cores.",
        "List every core used once, 0 to 31, and count them.",
    ),
    "SPY209": E(
        "coreIdToDsc_ lacks a core, or names a DSC that dscs_ does not have.",
        "Map every used core to 0, the only DSC.",
    ),
    "SPY210": E(
        "coreIdToWkSlice_ lacks a core or a dim, or an index is not below the number of slices.",
        "Give every core an index per dim of numWkSlicesPerDim_.",
    ),
    "SPY211": E(
        "The product of numWkSlicesPerDim_ is not the number of cores, so that work is left over "
        "or done twice.",
        "Choose slices whose product is the number of cores.",
    ),
    "SPY212": E(
        "Some combination of slice indices belongs to no core: that part of the output stays "
        "unwritten.",
        "Give each core another combination.",
    ),
    "SPY213": E(
        "An entry of coreIdToDscSchedule is not four integers, or names a DSC that does not exist.",
        "Write [[-1, 0, 0, 0]] for every core.",
    ),
    "SPY214": E(
        "A dim's extent in N_ is not a multiple of its slices; cores would have unequal shares.",
        "Pad the extent, or choose slices that divide it.",
    ),
    "SPY215": E(
        "The extents per core in dataStageParam_ are not N_ divided by the slices.",
        "Write N_ / numWkSlicesPerDim_ there.",
    ),
    "SPY216": E(
        "One DSC lists more tensors than the card has memory segments.",
        "Split the operation.",
    ),
    "SPY217": E(
        "labeledDs_ are numbered by position, and one has another ldsIdx_.",
        "Number them 0, 1, 2, … in order.",
    ),
    "SPY218": E(
        "A name in inputLabeledDs or outputLabeledDs is not of the form NAME-idxN of a tensor.",
        "Use the name and index of an entry of labeledDs_.",
    ),
    "SPY219": E(
        "A tensor's dsType_ has no entry in primaryDsInfo_, so its dims and stick are unknown.",
        "Add the role, or correct dsType_.",
    ),
    "SPY220": E(
        "scale_ needs one of 1, -1, -2 per dim, and -2 only for stick dims.",
        "Write one scale per dim of the role.",
    ),
    "SPY221": E(
        "stickDimOrder_ and stickSize_ differ in length, name unknown dims, or the stick is not "
        "128 bytes.",
        "List each stick dim with its elements; their product fills 128 bytes.",
    ),
    "SPY222": E(
        "A dim is used that N_ does not have, or that is no dim name.",
        "Use the dims of N_, with the names of the format.",
    ),
    "SPY223": E(
        "scheduleTree_ needs one allocate node per tensor; one is missing, double, or of another "
        "type.",
        "Write one allocate node per ldsIdx_.",
    ),
    "SPY224": E(
        "layoutDimOrder_ leaves out a dim of the tensor's role, or repeats one.",
        "List the role's dims once each, innermost first.",
    ),
    "SPY225": E("component_ is neither hbm nor lx.", "Place the tensor in hbm or lx."),
    "SPY226": E(
        "startAddressCoreCorelet_ has no entry for a core, or its fold does not lead to one.",
        "Write an entry [core, 0, 0] for every core used.",
    ),
    "SPY227": E(
        "Memory is addressed in sticks of 128 bytes; another address shifts all elements. Cores "
        "that share a stick have such addresses on purpose.",
        "Align the tensor, or the split, to sticks.",
    ),
    "SPY228": E(
        "The address is outside the 8 segments of 16 GiB.",
        "Address segment·2^34 + offset, or use symbols.",
    ),
    "SPY229": E(
        "The tensor starts or ends outside of the 2 MiB of its core's scratchpad.",
        "Split the tensor over more cores, move it down, or keep it in HBM.",
    ),
    "SPY230": E(
        "Symbol ids are negative, and only tensors in HBM have them; scratchpad addresses are "
        "literal.",
        "Use -1, -2, … for HBM, and a number for LX.",
    ),
    "SPY231": E(
        "A dim's coordinates need elemArr element folds behind three others.",
        "Correct elemArr, or the list of folds.",
    ),
    "SPY232": E(
        "The element folds multiply to another extent than one core has: elements would be left "
        "out or counted twice.",
        "Make the factors multiply to N_ / slices.",
    ),
    "SPY233": E(
        "coordInfo lacks a dim of the tensor, or has one the tensor does not have.",
        "Describe every dim of layoutDimOrder_, and no other.",
    ),
    "SPY234": E(
        "A core's share of a stick dim is part of a stick; the rest of the stick would be garbage.",
        "Round N_ up to whole sticks, and mask the padding.",
    ),
    "SPY235": E(
        "A core's accesses to one tensor have to lie within 256 MiB.",
        "Split the outermost dim over more cores, or over a loop.",
    ),
    "SPY236": E(
        "Output and input overlap in part: elements are overwritten before they are read.",
        "Write in place exactly, or to memory of its own.",
    ),
    "SPY237": E(
        "A mask is not a list of [start, count] within the dim's extent.",
        "Give coordinates of the whole tensor, within N_.",
    ),
    "SPY238": E(
        "coordinateMasking_ replaces values by samv-maskvalue, and there is no such constant.",
        "Add the constant: the value that does not change the result (0 for sums).",
    ),
    "SPY239": E(
        "maskingConstId_ names another constant than samv-maskvalue.",
        "Point it at samv-maskvalue.",
    ),
    "SPY240": E(
        "A constant lacks its name, format or value, or its bits do not fit the format.",
        "Write name, data format and one value.",
    ),
    "SPY241": E(
        "wordLength is not the size of dataFormat_, so pitches and values contradict each other.",
        "Use the bytes of the format: 2 for SEN169_FP16, 4 for IEEE_FP32.",
    ),
    "SPY242": E("dataFormat_ names no format of the card.", "Use one of the formats listed."),
    "SPY243": E(
        "Index and value tensors have to come in pairs that name each other, the index in a role "
        "of indices.",
        "Set indirectionType_ and the related tensor on both sides.",
    ),
    "SPY244": E(
        "A gap, maximum or device size is no integer, or for a dim the tensor does not have.",
        "Write one entry per dim of the tensor.",
    ),
    "SPY245": E(
        "A fold manager lacks its parts, they differ in length, or its data has a key that is not "
        "[core, corelet, time].",
        "Write dim_prop_func and dim_prop_attr of equal length, and keys of three numbers.",
    ),
    "SPY246": E(
        "Real files fold cores and corelets in one way; another one may mean something unknown.",
        "Compare the file with what its frontend usually writes.",
    ),
    "SPY247": E(
        "Work along several reduced dims is split: the order in which partial results are combined "
        "is not defined.",
        "Split one reduced dim only.",
    ),
    "SPY248": E(
        "A tensor is listed and placed, but the operation neither reads nor writes it.",
        "Name it in computeOp_, or remove it.",
    ),
    "SPY249": E("target_ is none that frontends write.", "Write the usual target."),
    "SPY250": E("The operation has no output, or several.", "Name one tensor in outputLabeledDs."),
    "SPY251": E("N_ gives a dim no extent above 0.", "Give every dim at least one element."),
    "SPY252": E(
        "memOrg_ does not list the memory that the allocate node places the tensor in.",
        "Add the component to memOrg_.",
    ),
    "SPY253": E(
        "Several cores have equal slice indices: they compute the same and write the same place.",
        "Use fewer cores, if that is not meant.",
    ),
    "SPY254": E(
        "A table inside N_ (windows, symbols) is not what the format says, or lacks an entry.",
        "Correct the entry at the path.",
    ),
    "SPY255": E(
        "A padding kind is unknown, or given for a dim along which no window slides.",
        "Use a kind the message lists, on a windowed dim.",
    ),
    "SPY256": E(
        "The last window reaches beyond the input and its padding.",
        "Check total, stride, dilation and the output's extent.",
    ),
    "SPY257": E(
        "No window reads the last elements of the input: the output may be too small.",
        "Check the stride and the output's extent.",
    ),
    "SPY258": E(
        "A symbolic dim lacks its maximum or granularity, or contradicts N_.",
        "Describe the symbol as the message expects.",
    ),
    "SPY259": E(
        "Cores that share a DSC run different steps of it.",
        "Give them equal schedules.",
    ),
    "SPY260": E(
        "coreIdToDscSchedule names a data op by a number that dataOpdscs_ does not have.",
        "Use -1 for no data op, or the number of one.",
    ),
    "SPY261": E(
        "A tensor has work slices of its own that do not cover its dims on the operation's cores.",
        "Give every core a slice of the tensor, within its extents.",
    ),
    "SPY262": E(
        "Dims inside of the indexed one have no size of their own, so that nothing says how far "
        "one index moves.",
        "Index the outermost dim, or give deviceDimSizes_.",
    ),
    "SPY270": E("The path given does not exist.", "Correct the path."),
    "SPY271": E(
        "The directory has no bundle.mlir, so it is no bundle.",
        "Name the directory that holds bundle.mlir, or the file itself.",
    ),
    "SPY272": E(
        "An execute names a file that is not there.",
        "Copy the whole directory, or correct sdsc_filename.",
    ),
    "SPY274": E(
        "A file cannot be opened, or is not UTF-8 text.", "Check permissions and encoding."
    ),
    "SPY275": E(
        "An SDSC uses a symbol as address that the execute statement does not bind.",
        "Add the id, with its value, to the execute.",
    ),
    "SPY276": E(
        "An execute binds symbols that its SDSC never uses; ids may be mixed up.",
        "Remove them, or correct the SDSC's ids.",
    ),
    "SPY277": E(
        "A file looks like an SDSC of the bundle, but no statement executes it.",
        "Remove it, or add the execute.",
    ),
    "SPY279": E(
        "Two SDSC files hold the same name; tools that go by name take one for the other.",
        "Name each after its file.",
    ),
    "SPY280": E(
        "The operation is given more or fewer tensors than it takes.",
        "Give the inputs that the operations page lists, and one output.",
    ),
    "SPY281": E(
        "The operation computes with a constant that constantInfo_ does not hold.",
        "Add it; the operations page names the constants.",
    ),
    "SPY282": E(
        "A split puts parts of one stick on several cores in an operation that works on sticks.",
        "Split by whole sticks.",
    ),
    "SPY283": E(
        "Operands have different stick dims, or different numbers of elements per stick.",
        "Restickify or convert one of them first.",
    ),
    "SPY284": E(
        "A matmul needs a reduced dim in A and B only, in A's stick, and a generated one in the "
        "sticks of B and C.",
        "Correct the dims, or restickify an operand.",
    ),
    "SPY285": E(
        "A top-k needs one dim in the input only, one in the output only, and a common stick dim.",
        "Correct the dims, or restickify the input.",
    ),
    "SPY286": E("More values are wanted than there are.", "Choose k up to the extent."),
    "SPY287": E(
        "An operand varies along a dim along which the result does not, or the reverse.",
        "Reduce or broadcast the dim explicitly.",
    ),
    "SPY292": E(
        "A windowed operation has dims that do not go together, or windows that leave its input.",
        "Follow the message; compare dims and paddingSizes_ with the operations page.",
    ),
    "SPY293": E(
        "Formats below 16 bits pack a stick in an order that depends on the operation, and the "
        "tensor's stick is another one.",
        "Use the stick of the operations page, or convert the tensor first.",
    ),
    "SPY294": E(
        "The memory of a tensor ends before the iteration does, or N_ leaves it no elements.",
        "Check N_, gaps and device sizes.",
    ),
    "SPY295": E(
        "A mean is a sum times a constant, and the constant is not one over the number of elements "
        "that are summed.",
        "Count the elements without padding, and use 1 over that.",
    ),
    "SPY296": E(
        "A conversion leaves elements in another order in the stick, and the reader expects the "
        "usual one, or the reverse.",
        "Give the tensor's layout the arrangement that its producer leaves.",
    ),
    "SPY297": E(
        "constantInfo_ holds a constant that the operation never reads; its name may be misspelt.",
        "Remove it, or correct its name.",
    ),
    "SPY290": E(
        "The arguments of the SDSC builder contradict each other.",
        "Follow the message; dims, splits and sticks have to fit the extents.",
    ),
    "SPY291": E(
        "The bundle builder was asked for something a bundle cannot hold.",
        "Follow the message; place operands in open loops, and use at most 7 baked arguments.",
    ),
}
