"""Number formats of the card and of the host, with their reference codecs (numpy only).

The leaf every layer may import: `formats` holds the two tables (device formats, host dtypes),
`codecs` turns numbers into bit patterns and back, slowly and obviously. The compiled codecs in
``spyre/hw`` are tested against these. Rules: operations reference §1, hardware reference §1.
"""

from spyre.dtypes.codecs import (
    NinfView,
    Rounding,
    decode_bfloat16,
    decode_dl16,
    decode_e4m3fn,
    decode_e5m2fnuz,
    decode_ieee_half,
    encode_bfloat16,
    encode_dl16,
    encode_e4m3fn,
    encode_e5m2fnuz,
    encode_ieee_half,
)
from spyre.dtypes.conversion import (
    NIBBLE_SHIFTS,
    Mode,
    NumericRules,
    bytes_to_codes,
    codes_to_bytes,
    decode_device,
    decode_host,
    encode_device,
    encode_host,
)
from spyre.dtypes.formats import (
    FORMATS,
    HOST_DTYPES,
    STICK_BYTES,
    DataFormat,
    FormatKind,
    HostDtype,
    canonical_dtype_name,
    find_format,
    find_host_dtype,
    find_stored_format,
)

__all__ = [
    "FORMATS",
    "HOST_DTYPES",
    "NIBBLE_SHIFTS",
    "STICK_BYTES",
    "DataFormat",
    "FormatKind",
    "HostDtype",
    "Mode",
    "NinfView",
    "NumericRules",
    "Rounding",
    "bytes_to_codes",
    "canonical_dtype_name",
    "codes_to_bytes",
    "decode_bfloat16",
    "decode_device",
    "decode_dl16",
    "decode_e4m3fn",
    "decode_e5m2fnuz",
    "decode_host",
    "decode_ieee_half",
    "encode_bfloat16",
    "encode_device",
    "encode_dl16",
    "encode_e4m3fn",
    "encode_e5m2fnuz",
    "encode_host",
    "encode_ieee_half",
    "find_format",
    "find_host_dtype",
    "find_stored_format",
]
