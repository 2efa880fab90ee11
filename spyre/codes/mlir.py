"""Causes and fixes of SPY1xx: bundle.mlir, its structure, and values given to its parameters."""

from __future__ import annotations

from spyre.codes.record import Explanation as E

MLIR_EXPLANATIONS: dict[str, E] = {
    "SPY101": E(
        "The file holds a character that starts no token, often from an editor or a damaged copy.",
        "Remove the character at the caret.",
    ),
    "SPY102": E(
        "The text at the caret cannot continue the statement; a name, type or comma is missing "
        "or misspelt.",
        "Write what the message expects there.",
    ),
    "SPY103": E(
        "A brace, a statement or the rest of the file is missing, as after a truncated copy.",
        "Close what is open, or copy the file again.",
    ),
    "SPY104": E(
        "A string has no closing quote on its line, or holds an escape that does not exist.",
        "Close the string on the line it starts on.",
    ),
    "SPY105": E(
        "The file is empty, holds comments only, or holds several modules; a bundle is one module.",
        "Keep exactly one module per bundle.mlir.",
    ),
    "SPY106": E(
        "The module holds no function or several; the launch would not know which one to run.",
        "Keep exactly one func.func.",
    ),
    "SPY107": E(
        "The function's last statement is not return.", "End the function's body with return."
    ),
    "SPY108": E(
        "Something follows return, or return stands inside a loop, where it would leave it early.",
        "Make return the last statement of the function's own body.",
    ),
    "SPY110": E(
        "The operation is none that bundles use. Bundles hold constants, additions, affine maps, "
        "loops, allocations, extracts and executes.",
        "Correct the name, or lower the operation to those before writing the bundle.",
    ),
    "SPY111": E(
        "The operation is printed in MLIR's generic form, in quotes.",
        "Print the module in its custom form.",
    ),
    "SPY112": E(
        "An execute has no sdsc_filename, so there is nothing to run.",
        'Add sdsc_filename="sdsc_N.json" to its attributes.',
    ),
    "SPY113": E(
        "A loop carries values (iter_args or results); loops of bundles only have their index.",
        "Compute the value from the loop's index with an affine map.",
    ),
    "SPY114": E(
        "A value has another type than index; addresses, sizes and bounds all are index.",
        "Use index.",
    ),
    "SPY115": E(
        "An integer does not fit in 64 bits.", "Correct the number; addresses stay below 2^37."
    ),
    "SPY116": E(
        "Loops or expressions are nested so deeply that only a broken or hostile file has them.",
        "Flatten the loops.",
    ),
    "SPY117": E("A name occurs twice in one attribute list.", "Keep one of the two."),
    "SPY118": E(
        "sdsc_filename is not a string, or symbol_ids is not a list of integers.",
        "Write the attribute with a value of the kind the message expects.",
    ),
    "SPY119": E(
        "The function declares results or return has operands; a bundle gives nothing back.",
        "Return nothing; outputs are written to the arguments' memory.",
    ),
    "SPY120": E(
        "The type signature written behind an execute has another number of types than operands.",
        "Give one index type per operand, or leave the signature out.",
    ),
    "SPY121": E(
        "An affine map gives no value or several; a symbol needs one.",
        "Split it into maps of one result.",
    ),
    "SPY122": E(
        "The expression of an affine map names something that is no dim or symbol of that map.",
        "Declare the identifier, or correct the name.",
    ),
    "SPY123": E("A dim or symbol of an affine map is declared twice.", "Rename one of the two."),
    "SPY124": E(
        "The expression multiplies or divides dims by each other, which no affine map can.",
        "Multiply and divide by constants or symbols only.",
    ),
    "SPY125": E(
        "The divisor of floordiv, ceildiv or mod is 0 or negative, as written or as launched.",
        "Divide by a positive number; check the parameter it comes from.",
    ),
    "SPY126": E(
        "An input_arg carries an annotation other than granularity or max_value, or one below 1.",
        "Use granularity=N and max_value=N with N at least 1.",
    ),
    "SPY127": E("An addition has one operand or more than two.", "Add two values at a time."),
    "SPY128": E(
        "input_arg_extract asks for a field other than value, granularity and max_value.",
        "Extract one of those three.",
    ),
    "SPY130": E(
        "A statement uses a value that is defined nowhere in the function.",
        "Define it above, or correct the name.",
    ),
    "SPY131": E(
        "The value is defined further down; values exist from their definition on.",
        "Move the definition above its first use.",
    ),
    "SPY132": E(
        "The value is defined inside a loop and used after it, where it no longer exists.",
        "Define it outside of the loop, or use it inside.",
    ),
    "SPY133": E(
        "Two statements define the same name; every value is defined once.",
        "Rename one of the two.",
    ),
    "SPY134": E(
        "affine.apply names a map alias that the file does not define.",
        "Add the alias at the top of the file, or correct the name.",
    ),
    "SPY135": E("Two aliases have the same name.", "Rename one of the two."),
    "SPY136": E(
        "An input_arg parameter is used where an integer is needed.",
        "Take its value with sdscbundle.input_arg_extract value first.",
    ),
    "SPY137": E(
        "input_arg_extract is given something other than a parameter of type input_arg.",
        "Extract from a parameter; index values can be used as they are.",
    ),
    "SPY138": E(
        "The type written in input_arg_extract is not the one the parameter was declared with.",
        "Repeat the parameter's type, annotations included.",
    ),
    "SPY139": E(
        "granularity or max_value is extracted, and the parameter's type does not have it.",
        "Annotate the parameter, or extract its value.",
    ),
    "SPY140": E(
        "A map alias stands inside the function. It is read, but MLIR's own parser refuses it.",
        "Move aliases to the top of the file.",
    ),
    "SPY141": E(
        "affine.apply has another number of dims or symbols than its map.",
        "Give one operand per dim in ( ) and one per symbol in [ ].",
    ),
    "SPY142": E(
        "A value that depends on a loop index is given as a symbol of a map; symbols have to stay "
        "the same in all enclosing loops.",
        "Give it as a dim.",
    ),
    "SPY150": E("The step of a loop is 0 or negative: it would never end.", "Use a step above 0."),
    "SPY151": E(
        "The step does not divide the loop's extent, so the last tile would reach beyond it.",
        "Choose a step that divides upper minus lower bound.",
    ),
    "SPY152": E(
        "A symbol's value, computed from constants, is negative; symbols are addresses.",
        "Correct the map or the constants it is computed from.",
    ),
    "SPY153": E("device_mem_allocate asks for 0 bytes or fewer.", "Allocate at least one byte."),
    "SPY154": E(
        "All allocations together exceed the memory programs may allocate.",
        "Allocate less, or reuse allocations.",
    ),
    "SPY155": E(
        "device_mem_allocate stands in a loop. It gives one buffer that all iterations share, "
        "which is seldom what is meant.",
        "Move it above the loop.",
    ),
    "SPY156": E(
        "A strict check found a loop whose bounds are known at launch only.",
        "Write constant bounds where the target needs them; launches here do not.",
    ),
    "SPY157": E(
        "An address, a bound or a given value leaves 64 bits.",
        "Correct the map, or the value given with --value.",
    ),
    "SPY158": E(
        "An index expression grew beyond what can be evaluated for every iteration.",
        "Simplify the map, or split it with fewer divisions.",
    ),
    "SPY160": E(
        "An execute binds another number of ids than it has operands; each operand gives the value "
        "of one symbol.",
        "List one id per operand, in the same order.",
    ),
    "SPY161": E(
        "A symbol id is 0 or positive; SDSC files tell symbols from addresses by the sign.",
        "Use -1, -2 and so on.",
    ),
    "SPY162": E(
        "One execute binds an id twice, and nothing says which value counts.",
        "Bind each id once.",
    ),
    "SPY163": E(
        "An execute has an attribute nobody reads; it may be a misspelt one.",
        "Remove it, or correct its name to sdsc_filename or symbol_ids.",
    ),
    "SPY164": E(
        "sdsc_filename is absolute, holds .. or a backslash; a bundle is one directory.",
        "Name a file in the bundle's directory.",
    ),
    "SPY165": E(
        "Two executes of one SDSC file bind different ids, so one of them leaves symbols open.",
        "Bind the same ids wherever the file is executed.",
    ),
    "SPY166": E(
        "An id stands for different values in different executes. Ids are global in a bundle: "
        "later stages keep one value per id.",
        "Use a fresh id for each value.",
    ),
    "SPY170": E(
        "LoopProgram.schedule was called without a value for a parameter.",
        "Pass a value for every parameter, by name.",
    ),
    "SPY171": E(
        "A value is given by a name that no parameter has.",
        "Correct the name; the message lists those there are.",
    ),
    "SPY172": E("A parameter was given something that is no integer.", "Pass an int."),
    "SPY173": E(
        "A runtime size is not a multiple of the parameter's granularity, or above its max_value.",
        "Pad the size, or compile the kernel for larger ones.",
    ),
    "SPY174": E(
        "LoopProgram.schedule was given another number of addresses than there are allocations.",
        "Pass one address per device_mem_allocate.",
    ),
    "SPY175": E(
        "The loops run so often that the launch would take forever; usually a bound is wrong.",
        "Check bounds and steps, or launch in several parts.",
    ),
    "SPY176": E(
        "The start addresses of all executes together need more memory than is reasonable.",
        "Launch in several parts.",
    ),
}
