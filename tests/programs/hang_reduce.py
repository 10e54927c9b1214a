"""Two ranks all_reduce 4 KB many times; rank 0 prints the median in microseconds."""

import os
import statistics
import sys
import time

import torch
import torch.distributed as dist

if __name__ == "__main__":
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    payload = torch.ones(1024)
    times = []
    for _ in range(int(sys.argv[1])):
        began = time.perf_counter()
        dist.all_reduce(payload)
        times.append(time.perf_counter() - began)
    if os.environ["RANK"] == "0":
        print(statistics.median(times) * 1e6)
    dist.destroy_process_group()
