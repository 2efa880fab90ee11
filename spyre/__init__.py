"""spyre: the open, hardware-free IBM Spyre accelerator.

`run` runs a bundle, `load_bundle` reads one, `load_ktir` reads a KTIR program, `Device` is a card,
`errors` holds the exceptions.
`FlexDevice` is a card with streams; `prepare_kernel` and `launch_kernel` run kernels on it.
`explain` shows how a function is compiled for the PyTorch device, `profile` models the time of a
run on a card.
Every name is imported on first use: ``import spyre`` loads neither numpy nor numba.
"""

import sys

import lazy_loader

__version__ = "0.1.0"
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)

if "IPython" in sys.modules and (shell := sys.modules["IPython"].get_ipython()) is not None:
    from spyre.notebook import register

    register(shell)
