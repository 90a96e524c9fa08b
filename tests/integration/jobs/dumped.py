"""Three ranks of gloo, of which rank 1 does not enter the last collective, dumped by torch's own Flight Recorder.

Takes the folder for the dumps, and `pickle` or `json`.
"""

import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C import _distributed_c10d

folder, form = Path(sys.argv[1]), sys.argv[2]
dist.init_process_group("gloo")
rank, store = dist.get_rank(), dist.distributed_c10d._get_default_store()
dist.all_reduce(torch.ones(8))


def evaluate():
    return dist.all_reduce(torch.ones(16), async_op=True)  # Async, so that the rank itself can dump that it waits.


if rank != 1:
    work = evaluate()
    store.set(f"entered {rank}", "")
store.wait(["entered 0", "entered 2"])
if form == "json":
    (folder / f"fr_rank{rank}.json").write_bytes(_distributed_c10d._dump_fr_trace_json())
else:
    (folder / f"nccl_trace_rank_{rank}").write_bytes(_distributed_c10d._dump_fr_trace())
store.set(f"dumped {rank}", "")
if rank == 0:  # It holds the store, so it leaves last.
    store.wait([f"dumped {other}" for other in range(3)])
os._exit(0)  # The collective would never end.
