"""Test that torch on the CPU behaves the same with and without this package.

Use: ``python -m qa.neighbour --pytorch PATH``. Torch's own tests of autograd, autocast,
serialization and tensors are run in a checkout's ``test`` folder. Without a checkout, every
operator, module and optimizer of the databases in torch's wheel and autocast's lists are called.
Each runs in one process that loads the package with torch and in one that does not.
"""
