"""Runs what torch tests devices with, on this one: from a checkout of torch, by classes of outcome.

:mod:`.template` is Inductor's common template; files of the test folder that make their tests for
every device (``instantiate_device_type_tests``) need nothing of ours.
"""
