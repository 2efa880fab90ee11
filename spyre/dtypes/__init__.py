"""Number formats of the card and of the host, with their reference codecs (numpy only).

The leaf every layer may import: `formats` holds the two tables (device formats, host dtypes),
`codecs` turns numbers into bit patterns and back, slowly and obviously. The compiled codecs in
``spyre/hw`` are tested against these. Rules: operations reference §1, hardware reference §1.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
