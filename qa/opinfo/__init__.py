"""Runs PyTorch's operator database (OpInfo) on a device and compares with the CPU.

Use: ``python -m qa.opinfo --ways out,compiled --dtype float32 --jobs 2 --sample 1/10``. Every
sample input of every operator that takes the dtype runs on the device in worker processes, in each
of the :mod:`.ways`; its results are compared with the CPU's. :mod:`.run_op` judges a sample by
:mod:`.tolerances`; :mod:`.outcome` lists the outcomes.
"""
