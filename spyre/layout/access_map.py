"""Where the elements of a tensor lie in memory, as arrays of addresses."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Int64Array = npt.NDArray[np.int64]
