"""How torch gets to know the device: dispatcher kernels, ``torch.spyre``, autocast, patches."""
