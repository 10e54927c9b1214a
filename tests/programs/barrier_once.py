"""Initialise gloo, barrier, end: what a launcher's start-up is measured with."""

import torch.distributed as dist

dist.init_process_group("gloo")
dist.barrier()
dist.destroy_process_group()
