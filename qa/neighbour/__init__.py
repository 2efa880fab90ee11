"""Torch on the CPU, with and without this package installed: the same outcomes.

Use: ``python -m qa.neighbour --pytorch PATH``. Torch's own tests of autograd, autocast,
serialization and tensors are run from a checkout's ``test`` folder, in place; of what ships in the
wheel, every operator, module and optimizer of torch's databases and autocast's lists are called.
Each runs in one process that loads the package with torch and in one that does not.
"""
