"""Copies between host and device: the engine that makes them, and what it says about each."""

from spyre.runtime.dma.copy import DmaCopy, DmaDirection
from spyre.runtime.dma.engine import DmaEngine

__all__ = ["DmaCopy", "DmaDirection", "DmaEngine"]
