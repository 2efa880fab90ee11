"""Runs PyTorch's own operator database (OpInfo) on a device and compares with the CPU.

Use: ``python -m tests.opinfo --dtype float16,float32 --json FILE``. Every sample input of every
operator that takes the dtype runs on the device in worker processes; what comes back is compared
with the CPU in float32. :mod:`.run_op` says how a sample is judged, :mod:`.tolerances` how exactly.
"""
