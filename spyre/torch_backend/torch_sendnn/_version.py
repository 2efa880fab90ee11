"""Version of the closed package with these names, which vLLM-spyre reads."""

__version__ = "1.1.0"
