"""Train three steps under torch.profiler with shapes and an execution trace; argv: the Kineto trace, the execution trace."""

import os
import sys

import torch
from torch import distributed
from torch.profiler import ExecutionTraceObserver, ProfilerActivity, profile

os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0", "RANK": "0", "WORLD_SIZE": "1"}
store = distributed.HashStore()
distributed.init_process_group("gloo", rank=0, world_size=1, store=store)
body = torch.nn.Sequential(torch.nn.Conv1d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(24, 2))
model = torch.nn.parallel.DistributedDataParallel(body)
optimizer = torch.optim.SGD(model.parameters(), 0.1)
observer = ExecutionTraceObserver().register_callback(sys.argv[2])
with profile(activities=[ProfilerActivity.CPU], record_shapes=True, execution_trace_observer=observer) as profiler:
    for _ in range(3):
        model(torch.randn(5, 3, 8)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        profiler.step()
profiler.export_chrome_trace(sys.argv[1])
distributed.destroy_process_group()
