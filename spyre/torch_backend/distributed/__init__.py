"""`torch.distributed` on cards: backend ``spyreccl``, its operators, and the groups behind them."""
