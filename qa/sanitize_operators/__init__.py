"""Runs PyTorch's operator database under the sanitizer: no right program may have a finding.

`python -m qa.sanitize_operators` runs each operator eager and compiled, on samples whose tensors
are widened to rows of 1, 3 and 5 sticks, in both number modes. It prints every finding, and the
number of programs that ran.
"""
