"""Every diagnostic code with its title: the one list that errors, checks and docs share.

1xx bundle.mlir · 2xx SDSC JSON and bundle directory · 3xx arguments, launch, command line ·
4xx faults on the device · 5xx not simulated · 6xx comparison of results.
"""

from __future__ import annotations

MLIR_CODES: dict[str, str] = {
}

SDSC_CODES: dict[str, str] = {
}

LAUNCH_CODES: dict[str, str] = {
}

DEVICE_CODES: dict[str, str] = {
}

UNSUPPORTED_CODES: dict[str, str] = {
}

COMPARE_CODES: dict[str, str] = {
}

CODES: dict[str, str] = {
    **MLIR_CODES,
    **SDSC_CODES,
    **LAUNCH_CODES,
    **DEVICE_CODES,
    **UNSUPPORTED_CODES,
    **COMPARE_CODES,
}
