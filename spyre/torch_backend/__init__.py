"""The PyTorch device "spyre" (step D); nothing below imports it."""
