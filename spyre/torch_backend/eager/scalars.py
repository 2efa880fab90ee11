"""Numbers on the card: one stick each, kept for the next operation that needs them."""

from __future__ import annotations

from collections import OrderedDict
from typing import TYPE_CHECKING

import numpy as np

from spyre.dtypes import find_stored_format
from spyre.dtypes.formats import FormatKind
from spyre.layout import SpyreTensorLayout
from spyre.runtime.flex.copies import to_device_plan
from spyre.runtime.flex.spyre_tensor import SpyreTensor
from spyre.runtime.host_tensor import HostTensor
from spyre.torch_backend.profiling import TO_CARD, in_range
from spyre.torch_backend.program.value import device_format

if TYPE_CHECKING:
    from spyre.runtime.flex.flex_device import FlexDevice

KEPT = 1024
_kept: OrderedDict[tuple[int, int, float, str], SpyreTensor] = OrderedDict()


def number_on_card(card: FlexDevice, number: float, dtype: str) -> SpyreTensor:
    """A tensor of rank 0, with the number in every lane of its stick."""
    key = (id(card), card.device.resets, number, dtype)
    if number != number or number == 0:
        key = (*key[:2], 0.0, f"{dtype} {number}")  # NaN is unequal to itself, -0 equal to 0
    found = _kept.get(key)
    if found is None:
        found = _kept[key] = _upload(card, number, dtype)
        if len(_kept) > KEPT:
            _kept.popitem(last=False)
    return found


@in_range(TO_CARD)
def _upload(card: FlexDevice, number: float, dtype: str) -> SpyreTensor:
    """Through a copy as any other, so that it has the number mode's format."""
    lanes = find_stored_format(device_format(dtype)).elements_per_stick
    layout = SpyreTensorLayout.from_host((lanes,), dtype)
    storage = card.allocate(layout.device_bytes)
    tensor = SpyreTensor(f"{number:g}", (lanes,), dtype, layout, storage)
    whole = find_stored_format(device_format(dtype)).kind is FormatKind.SIGNED
    values = np.full(lanes, number, np.int32 if whole else np.float32)
    host = HostTensor.from_array(tensor.name, values)
    card.default_stream.launch(to_device_plan(host, tensor.resolved), [tensor])
    card.default_stream.synchronize()
    return tensor
