"""Comparison of what ran with what should have: outputs, reference, number modes."""
