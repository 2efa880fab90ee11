"""Runs torch's device tests from a checkout of torch on this device, and classifies the outcomes.

:mod:`.template` is Inductor's common template; files of the test folder that make their tests for
every device (``instantiate_device_type_tests``) need no adapter.
"""
