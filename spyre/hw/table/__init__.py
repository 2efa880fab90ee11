"""Words of the tables that planners write and kernels read; nothing here computes."""
