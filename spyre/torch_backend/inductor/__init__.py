"""The Inductor backend: from ir.Operation to device programs, by the coarse-tiling document.

Imported on the first use of Inductor, never with the device.
"""
