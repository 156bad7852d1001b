"""Several processes of one job, such as `torchrun` starts: one run, of which each rank has a part."""
