"""Runs PyTorch's own operator database (OpInfo) on a device and compares with the CPU.

Use: ``python -m qa.opinfo --ways out,compiled --dtype float32 --jobs 2 --sample 1/10``. Every
sample input of every operator that takes the dtype runs on the device in worker processes, in each
of the :mod:`.ways`; what comes back is compared with the CPU. :mod:`.run_op` says how a sample is
judged, :mod:`.tolerances` how exactly, :mod:`.outcome` what can become of it.
"""
