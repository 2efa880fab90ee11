"""LSTM, GRU and simple networks: fused cells, and whole sequences as one program.

A step of a cell, and its backward, is one program. Under a recorder, or if no program can be
written, the same formula runs as operations of the device, with the same bits. Gates:
[batch, 4·hidden] in the order input, forget, cell, output (LSTM), [batch, 3·hidden] reset, update,
new (GRU), as in ``torch.nn``. The workspace, for the backward pass, has the activated gates of the
LSTM; reset, update, new, hidden state and the hidden part of the new gate of the GRU.

In the program of a sequence each direction of a layer is a loop over the steps. On the matrix units
the products of the inputs with their weights are computed before it, for all steps at once. A step
has the operations of torch's composition in the same order, hence the same bits. The composition
runs calls with gradients, dropout or a tracer, and those for which no program can be written.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial, reduce
from typing import Any

import msgspec
import torch
from msgspec.structs import replace
from torch import Tensor

from spyre.interrupts import interrupts
from spyre.mlir.builder import round_up
from spyre.torch_backend.compat import composed
from spyre.torch_backend.device import name_of
from spyre.torch_backend.eager.dispatch import FLOATS
from spyre.torch_backend.eager.elementwise import rectified
from spyre.torch_backend.eager.launch import is_plain_call, repeated, run
from spyre.torch_backend.eager.matmul import TERMS_BYTES, is_small_product, product
from spyre.torch_backend.eager.special import Term, tanh
from spyre.torch_backend.program import (
    MATMUL_STICK,
    DeviceOp,
    Lowering,
    LoweringError,
    OpKind,
    Value,
    current_recorder,
    joined,
    narrowed,
    off_lanes,
    selected,
    store_result,
    tile_of,
)

# --- operations on tensors or terms ---------------------------------------------------------------


def _chunks(x: Any, count: int) -> Any:
    """``x.chunk(count, 1)``; of terms with the sticks along rows that they have."""
    if isinstance(x, Tensor):
        return x.chunk(count, 1)
    builder, value = x.builder, x.value
    size = value.sizes[1] // count
    if value.lane_dim != 1 or not size % value.view.elements_per_stick:
        return [Term(builder, narrowed(value, 1, k * size, size)) for k in range(count)]
    value = off_lanes(builder, value, 1)  # some begin within a stick
    parts = (narrowed(value, 1, k * size, size) for k in range(count))
    return [Term(builder, builder.with_lane(part, 1)) for part in parts]


def _joined(parts: Sequence[Any]) -> Any:
    """``torch.cat(parts, 1)``."""
    if isinstance(parts[0], Tensor):
        return torch.cat([*parts], 1)
    builder, values = parts[0].builder, [part.value for part in parts]
    return Term(builder, joined(builder, values, 1, values[0].dtype))


def _zeros_like(x: Any) -> Any:
    if isinstance(x, Tensor):
        return torch.zeros_like(x)
    builder, value = x.builder, x.value
    zero = builder.constant(0.0, value.dtype)
    return Term(builder, builder.broadcast(zero, value.sizes, value.lane_dim))


# --- formulas, of tensors or terms ---------------------------------------------------------------


def lstm_state(gates: Sequence[Any], cx: Any) -> tuple[list[Any], Any, Any]:
    """The activated gates, the cell state and the hidden state of a step, made in this order."""
    i, f, g, o = gates
    i, f, o = i.sigmoid(), f.sigmoid(), o.sigmoid()
    g = g.tanh()
    cy = f * cx + i * g
    return [i, f, g, o], cy, o * cy.tanh()


def gru_state(inputs: Sequence[Any], hiddens: Sequence[Any], hx: Any) -> tuple[list[Any], Any]:
    """Reset, update and new of a step, and its hidden state."""
    (ir, iz, i_new), (hr, hz, h_new) = inputs, hiddens
    r, z = (ir + hr).sigmoid(), (iz + hz).sigmoid()
    new = (i_new + r * h_new).tanh()
    return [r, z, new], new + z * (hx - new)


def _lstm(gates: Any, hidden_gates: Any, cx: Any, *biases: Any) -> tuple[Any, ...]:
    for addend in (hidden_gates, *biases):
        gates = gates if addend is None else gates + addend
    activated, cy, hy = lstm_state(_chunks(gates, 4), cx)
    return hy, cy, _joined(activated)


def _lstm_backward(grad_hy: Any, grad_cy: Any, cx: Any, cy: Any, workspace: Any) -> tuple[Any, ...]:
    i, f, g, o = _chunks(workspace, 4)
    hyperbolic = cy.tanh()
    grad_cell = _zeros_like(cy) if grad_cy is None else grad_cy
    grad_o = _zeros_like(cy)
    if grad_hy is not None:
        grad_cell = grad_cell + grad_hy * o * (1.0 - hyperbolic * hyperbolic)
        grad_o = grad_hy * hyperbolic * o * (1.0 - o)
    grad_i = grad_cell * g * i * (1.0 - i)
    grad_f = grad_cell * cx * f * (1.0 - f)
    grad_g = grad_cell * i * (1.0 - g * g)
    return _joined([grad_i, grad_f, grad_g, grad_o]), grad_cell * f


def _gru(
    inputs: Any, hiddens: Any, hx: Any, input_bias: Any = None, hidden_bias: Any = None
) -> tuple[Any, ...]:
    inputs = inputs if input_bias is None else inputs + input_bias
    hiddens = hiddens if hidden_bias is None else hiddens + hidden_bias
    parts = _chunks(hiddens, 3)
    activated, hy = gru_state(_chunks(inputs, 3), parts, hx)
    return hy, _joined([*activated, hx, parts[2]])


def _gru_backward(grad_hy: Any, workspace: Any) -> tuple[Any, ...]:
    r, z, new, hx, h_new = _chunks(workspace, 5)
    grad_new = grad_hy * (1.0 - z) * (1.0 - new * new)
    grad_z = grad_hy * (hx - new) * z * (1.0 - z)
    grad_r = grad_new * h_new * r * (1.0 - r)
    inputs = _joined([grad_r, grad_z, grad_new])
    hiddens = _joined([grad_r, grad_z, grad_new * r])
    return inputs, hiddens, grad_hy * z


# --- kernels --------------------------------------------------------------------------------------


def _made(
    name: str, formula: Callable[..., tuple[Any, ...]], *tensors: Tensor | None
) -> tuple[Tensor, ...]:
    """Results of ``formula`` by one program, else (or under a recorder) by operations."""
    given = [t for t in tensors if t is not None]
    dtype = given[0].dtype
    alike = all(t.dtype == dtype and t.device == given[0].device for t in given)
    if dtype in FLOATS and alike and given[0].numel() and current_recorder() is None:
        missing = tuple(k for k, tensor in enumerate(tensors) if tensor is None)
        try:
            return run(name, partial(_lowered, formula), given, (missing,))
        except LoweringError:
            pass
    return formula(*tensors)


def _lowered(
    formula: Callable[..., tuple[Any, ...]], builder: Lowering, *args: Any
) -> Sequence[Value]:
    """``missing``: which of the formula's terms are not given."""
    *values, missing = args
    terms: list[Term | None] = [Term(builder, value) for value in values]
    for place in missing:
        terms.insert(place, None)
    return [term.value for term in formula(*terms)]


lstm_cell = partial(_made, "lstm_cell", _lstm)
"""aten::_thnn_fused_lstm_cell: hidden state, cell state, workspace."""
gru_cell = partial(_made, "gru_cell", _gru)
"""aten::_thnn_fused_gru_cell: hidden state, workspace."""


def lstm_cell_backward(
    grad_hy: Tensor | None,
    grad_cy: Tensor | None,
    cx: Tensor,
    cy: Tensor,
    workspace: Tensor,
    has_bias: bool,
) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
    """aten::_thnn_fused_lstm_cell_backward_impl: gradients of gates, cell state and bias."""
    if grad_hy is None and grad_cy is None:
        return None, None, None
    gates, grad_cx = _made(
        "lstm_cell_backward", _lstm_backward, grad_hy, grad_cy, cx, cy, workspace
    )
    return gates, grad_cx, gates.sum(0) if has_bias else None


def gru_cell_backward(
    grad_hy: Tensor, workspace: Tensor, has_bias: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """aten::_thnn_fused_gru_cell_backward: gradients of both gates, hidden state, both biases."""
    inputs, hiddens, grad_hx = _made("gru_cell_backward", _gru_backward, grad_hy, workspace)
    biases = (inputs.sum(0), hiddens.sum(0)) if has_bias else (None, None)
    return inputs, hiddens, grad_hx, *biases


# --- steps ----------------------------------------------------------------------------------------


Values = Sequence[Value]


def _lstm_step(
    builder: Lowering, inputs: Value, hiddens: Value, biases: Values, states: Values
) -> Values:
    gates = reduce(partial(builder.pointwise, "add"), (inputs, hiddens, *biases))
    _, cy, hy = lstm_state(_parts(builder, gates), Term(builder, states[1]))
    return hy.value, cy.value


def _gru_step(
    builder: Lowering, inputs: Value, hiddens: Value, biases: Values, states: Values
) -> Values:
    hiddens, hx = _biased(builder, hiddens, biases[1:]), Term(builder, states[0])
    _, hy = gru_state(_parts(builder, inputs), _parts(builder, hiddens), hx)
    return (hy.value,)


def _simple_step(
    activation: Callable[[Lowering, Value, str], Value],
    builder: Lowering,
    inputs: Value,
    hiddens: Value,
    biases: Values,
    states: Values,
) -> Values:
    hiddens = _biased(builder, hiddens, biases[1:])
    (gate,) = _parts(builder, builder.pointwise("add", hiddens, inputs))
    return (activation(builder, gate.value, gate.value.dtype),)


def _biased(builder: Lowering, gates: Value, biases: Sequence[Value]) -> Value:
    """``gates`` and the first bias, if there is one."""
    return builder.pointwise("add", gates, biases[0]) if biases else gates


def _parts(builder: Lowering, gates: Value) -> list[Term]:
    """Each gate of [rows, gates, width]."""
    return [Term(builder, selected(gates, 1, k)) for k in range(gates.sizes[1])]


class RecurrentCell(msgspec.Struct, frozen=True):
    """A kind of recurrent cell.

    ``step``: (builder, gates of the input, gates of the hidden state, biases, states) → new
    states. Gates and biases: [rows, gates, width]; states: [rows, width], the hidden one first.
    ``biases_inputs``: biases are added to the gates of the input before the loop.
    """

    gates: int
    states: int
    step: Callable[..., Sequence[Value]]
    biases_inputs: bool = True


CELLS = {
    "lstm": RecurrentCell(4, 2, _lstm_step, biases_inputs=False),
    "gru": RecurrentCell(3, 1, _gru_step),
    "rnn_tanh": RecurrentCell(1, 1, partial(_simple_step, tanh)),
    "rnn_relu": RecurrentCell(1, 1, partial(_simple_step, rectified)),
}


# --- the program ----------------------------------------------------------------------------------


class Network(msgspec.Struct, frozen=True):
    """Key of a program, besides sizes. ``weights``: tensors per layer and direction.
    ``is_backwards``: its only direction is from the last step to the first.
    """

    cell: str
    layers: int
    directions: int
    has_biases: bool
    weights: int
    dtype: str
    is_backwards: bool = False

    @property
    def has_projection(self) -> bool:
        """True if a last weight projects the hidden state to a smaller one."""
        return bool(self.weights % 2)


def network(builder: Lowering, x: Value, *args: Any) -> list[Value]:
    """Outputs [steps, rows, width] of the last layer, then the last states.

    ``args``: states [layers · directions, rows, width], weights and biases by layer and direction,
    `Network`. The memory of a last state is that of the state all the time.
    """
    *values, net = args
    count = CELLS[net.cell].states
    states = [builder.broadcast(state, state.sizes, 2) for state in values[:count]]
    weights = values[count:]
    for layer in range(net.layers):
        outputs = []
        for direction in range(net.directions):
            number = layer * net.directions + direction
            own = weights[number * net.weights : (number + 1) * net.weights]
            ours = [selected(state, 0, number) for state in states]
            is_backwards = net.is_backwards or direction > 0
            outputs.append(_Direction(builder, net, own, is_backwards).run(x, ours))
        x = outputs[0]
        if net.directions > 1:
            x = builder.with_lane(joined(builder, outputs, 2, net.dtype), 2)
    return [x, *states]


class _Direction:
    """A layer in one direction; factors and biases are laid out before the loop."""

    def __init__(
        self, builder: Lowering, net: Network, weights: Sequence[Value], is_backwards: bool
    ) -> None:
        self.builder = builder
        self.dtype = net.dtype
        self.cell = CELLS[net.cell]
        self.is_backwards = is_backwards
        of_input, of_hidden, *rest = weights
        self.of_input = self._factor(of_input, self.cell.gates)
        self.of_hidden = self._factor(of_hidden, self.cell.gates)
        self.projection = self._factor(rest.pop(), 1) if net.has_projection else None
        self.biases = [_by_gate(builder, b, self.cell.gates).unsqueezed(0) for b in rest]

    def run(self, x: Value, states: Sequence[Value]) -> Value:
        """Hidden states [steps, rows, width] for inputs [steps, rows, depth]; ``states`` are the
        last ones from then on.
        """
        builder, (steps, rows, depth) = self.builder, x.sizes
        outputs = builder.scratch((steps, rows, states[0].sizes[1]), self.dtype, 2)
        needed = 2 * steps * rows * self.of_input.sizes[1]
        is_at_once = self.dtype != "float32" and needed <= TERMS_BYTES
        if is_at_once:
            gates = self._inputs(x.reshaped((steps * rows, depth)))
            x = gates.reshaped((steps, rows, *gates.sizes[1:]))
        with builder.loop(steps):
            inputs = tile_of(x, 0, self.is_backwards)
            self._step(inputs if is_at_once else self._inputs(inputs), states)
            self.builder.copy_to(states[0], tile_of(outputs, 0, self.is_backwards))
        return outputs

    def _inputs(self, rows: Value) -> Value:
        gates = self._product(rows, self.of_input, self.cell.gates)
        return _biased(self.builder, gates, self.biases) if self.cell.biases_inputs else gates

    def _step(self, inputs: Value, states: Sequence[Value]) -> None:
        """Put the next states in the place of ``states``."""
        hiddens = self._product(states[0], self.of_hidden, self.cell.gates)
        hy, *others = self.cell.step(self.builder, inputs, hiddens, self.biases, states)
        if self.projection is not None:
            hy = selected(self._product(hy, self.projection, 1), 1, 0)
        for made, state in zip((hy, *others), states, strict=True):
            made = self.builder.with_lane(made, state.lane_dim)
            if made.order is None:
                self.builder.copy_to(made, state)
            else:  # nothing reads a state after its next one was made
                self.builder.builder.output_into(made, state)

    def _factor(self, weight: Value, gates: int) -> Value:
        """[gates · width, depth] as the right factor of `_product`: [depth, gates · width]; for the
        matrix units up to whole sticks of the depth, with the first elements of gates in lane 0.
        """
        if self.dtype == "float32":
            return weight.transposed(0, 1)
        builder, depth = self.builder, weight.sizes[1]
        by_gate = weight.reshaped((gates, weight.sizes[0] // gates, depth)).permuted((2, 0, 1))
        filled = builder.with_lane(by_gate, 2)
        factor = self._apart(round_up(depth, MATMUL_STICK), gates, by_gate.sizes[2])
        if not (missing := factor.sizes[0] - depth):
            store_result(builder, filled, factor)
        else:
            zero = builder.constant(0.0, self.dtype)
            builder.copy_to(filled, narrowed(factor, 0, 0, depth))
            builder.copy_to(zero, narrowed(factor, 0, depth, missing))
        return factor.reshaped((factor.sizes[0], weight.sizes[0]))

    def _product(self, rows: Value, factor: Value, gates: int) -> Value:
        """[rows, gates, width] of [rows, depth] and a factor."""
        builder, columns = self.builder, factor.sizes[1]
        if self.dtype == "float32":
            return _by_gate(builder, product(builder, rows, factor, self.dtype), gates)
        into = self._apart(rows.sizes[0], gates, columns // gates)
        flat = into.reshaped((rows.sizes[0], columns))
        factors = (builder.left_factor(rows, 2), factor)
        builder.add(DeviceOp(OpKind.MATMUL, "batchmatmul", factors, flat))
        return into

    def _apart(self, rows: int, gates: int, width: int) -> Value:
        """Memory for [rows, gates, width] in which every gate begins with a stick."""
        padded = round_up(width, MATMUL_STICK)
        memory = self.builder.scratch((rows, gates * padded), self.dtype, 1)
        return narrowed(memory.reshaped((rows, gates, padded)), 2, 0, width)


def _by_gate(builder: Lowering, value: Value, gates: int) -> Value:
    """[.., gates · width] as [.., gates, width]."""
    *outer, last = value.sizes
    sizes = (*outer, gates, last // gates)
    if value.lane_dim == len(outer) and sizes[-1] % value.view.elements_per_stick and gates > 1:
        value = builder.with_lane(value, -1)  # the next gate begins within a stick
    return value.reshaped(sizes)


# --- kernels --------------------------------------------------------------------------------------

MAX_STEPS = 1024
"""Most steps of a program, all layers and directions together. Each takes 50 µs of the first call,
and 10 to 40 KB of tables, as long as it has few gates.
"""
FEW_GATES = 1 << 14
"""Elements, all rows together; steps with more of them count as several."""


def _run(
    cell: str,
    x: Tensor,
    hx: Sequence[Tensor],
    params: Sequence[Tensor],
    has_biases: bool,
    num_layers: int,
    dropout: float,
    train: bool,
    bidirectional: bool,
    batch_first: bool,
) -> tuple[Tensor, ...] | None:
    """Outputs and last states; None if torch has to decompose the operation."""
    drops_out = dropout and train and num_layers > 1
    is_plain = x.dim() > 1 and x.dtype in FLOATS and is_plain_call((x, *hx, *params))
    if drops_out or num_layers < 1 or not is_plain:
        return None
    if torch.is_autocast_enabled("spyre"):
        # where gradients are wanted, they add up step by step in the dtype of the weights, so there
        # every step has to cast
        (x,), hx, params = (
            [t.to(torch.get_autocast_dtype("spyre")) for t in given] for given in ((x,), hx, params)
        )
    directions = 1 + bidirectional
    weights = len(params) // (num_layers * directions)
    net = Network(cell, num_layers, directions, has_biases, weights, name_of(x.dtype))
    found = _launched(net, x.transpose(0, 1) if batch_first else x, hx, params)
    if found is None or not batch_first:
        return found
    return found[0].transpose(0, 1), *found[1:]


def _launched(
    net: Network, x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor]
) -> tuple[Tensor, ...] | None:
    """Outputs [steps, rows, width] and last states; None where that is no program."""
    try:
        with interrupts:
            operands = (net, x, *hx, *params)
            return repeated(_launched, operands, lambda: _run_anew(net, x, hx, params)) or None
    except LoweringError:
        return None


def _run_anew(
    net: Network, x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor]
) -> tuple[Tensor, ...]:
    """As `_launched`, without looking for a call before; () where that is no program."""
    if not _fits(net, x, hx, params):
        return ()
    gates = x.shape[1] * params[0].shape[0]
    most_steps = max(MAX_STEPS // (1 + gates // FEW_GATES), 1)
    if x.shape[0] * net.layers * net.directions > most_steps:
        return _in_pieces(net, x, hx, params, most_steps)
    return run(net.cell, network, (x, *hx, *params), (net,))


def _in_pieces(
    net: Network, x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor], most_steps: int
) -> tuple[Tensor, ...]:
    """Layer by layer, direction by direction, and of that as many steps as a program has."""
    last = []
    for layer in range(net.layers):
        outputs = []
        for direction in range(net.directions):
            number = layer * net.directions + direction
            one = replace(net, layers=1, directions=1, is_backwards=direction > 0)
            own = params[number * net.weights : (number + 1) * net.weights]
            states = [state[number : number + 1] for state in hx]
            made = []
            for piece in x.split(most_steps)[:: -1 if one.is_backwards else 1]:
                output, *states = run(net.cell, network, (piece, *states, *own), (one,))
                made.append(output)
            outputs.append(_together(made[:: -1 if one.is_backwards else 1]))
            last.append(states)
        x = _together(outputs, 2)
    return x, *map(_together, zip(*last, strict=True))


def _together(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    """Joined along ``dim``, if they are several."""
    return tensors[0] if len(tensors) == 1 else torch.cat([*tensors], dim)


def _are_plain(tensors: Sequence[Tensor]) -> bool:
    """True for floats on one card."""
    first = tensors[0]
    return all(
        tensor.dtype in FLOATS
        and tensor.device == first.device
        and tensor.numel() > 0
        and hasattr(tensor.untyped_storage(), "_spyre_buffer")
        for tensor in tensors
    )


def _fits(net: Network, x: Tensor, hx: Sequence[Tensor], params: Sequence[Tensor]) -> bool:
    """True if the sizes are those of such a network, and products in float32 small enough."""
    cell, tensors = CELLS[net.cell], (x, *hx, *params)
    if not _are_plain(tensors) or any(tensor.dtype is not x.dtype for tensor in tensors):
        return False
    layers = net.layers * net.directions
    if len(hx) != cell.states or len(params) != layers * net.weights:
        return False
    if any(tensor.dim() != 3 for tensor in (x, *hx)):
        return False
    rows, out, width = x.shape[1], hx[0].shape[2], hx[-1].shape[2]
    if net.weights != 2 + 2 * net.has_biases + (out != width):
        return False
    if [tuple(s.shape) for s in hx] != [(layers, rows, n) for n in (out, width)[: cell.states]]:
        return False
    depths = [x.shape[2]] * net.directions + [net.directions * out] * (layers - net.directions)
    columns, more = cell.gates * width, [(out, width)] * net.has_projection
    biases = [(columns,)] * (2 * net.has_biases)
    wanted = [s for n in depths for s in ((columns, n), (columns, out), *biases, *more)]
    if [tuple(p.shape) for p in params] != wanted:
        return False
    return net.dtype != "float32" or is_small_product((rows, max(*depths, out)), columns)


def _network_kernel(cell: str, x: Tensor, hx: Tensor | Sequence[Tensor], *args: Any) -> Any:
    """aten::lstm.input and its kin."""
    found = _run(cell, x, (hx,) if isinstance(hx, Tensor) else hx, *args)
    return composed(f"{cell}.input", x, hx, *args) if found is None else found


def _cell_kernel(cell: str, x: Tensor, hx: Tensor | Sequence[Tensor], *weights: Any) -> Any:
    """aten::lstm_cell and its kin: a network of one step."""
    states = (hx,) if isinstance(hx, Tensor) else hx
    params = [weight for weight in weights if weight is not None]
    found = None
    if is_plain_call((x, *states, *params)) and x.dtype in FLOATS:
        net = Network(cell, 1, 1, len(params) == 4, len(params), name_of(x.dtype))
        found = _launched(net, x.unsqueeze(0), [state.unsqueeze(0) for state in states], params)
    if found is None:
        return composed(f"{cell}_cell", x, hx, *weights)
    made = tuple(state[0] for state in found[1:])
    return made[0] if len(made) == 1 else made


COMPOSITES = {
    **{f"{cell}.input": partial(_network_kernel, cell) for cell in CELLS},
    **{f"{cell}_cell": partial(_cell_kernel, cell) for cell in CELLS},
}
"""Functions called before torch's compositions of these operations, by aten name."""
