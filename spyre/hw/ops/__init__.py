"""The op table: what operations there are, what they need, and what the specification leaves
open.
"""
