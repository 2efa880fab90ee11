"""spyre: the open, hardware-free IBM Spyre accelerator."""

__version__ = "0.1.0"
