"""Recorded command streams as traces for Perfetto."""
