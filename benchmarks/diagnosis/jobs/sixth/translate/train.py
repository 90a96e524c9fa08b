"""Learns to translate with DDP, on two hosts whose link is shared with nobody, but not fast."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from data import WORDS, make_batches, make_pairs, to_tensors
from model import Translator
from torch.nn.parallel import DistributedDataParallel

from benchmarks.diagnosis.jobs.common import leave, read_arguments

arguments = read_arguments(60)
fault = arguments.fault
torch.set_num_threads(1)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
torch.manual_seed(arguments.seed)

model = DistributedDataParallel(Translator(fault=fault), bucket_cap_mb=1.0)
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
pairs = make_pairs(arguments.seed)


def batches():
    epoch = 0
    while True:
        yield from make_batches(pairs, 64, rank, world, arguments.seed + epoch, fault)
        epoch += 1


for step, batch in zip(range(arguments.steps), batches(), strict=False):
    sources, targets = to_tensors(batch)
    scores = model(sources, targets[:, :-1])
    loss = F.cross_entropy(scores.reshape(-1, WORDS), targets[:, 1:].flatten(), ignore_index=0)
    optimizer.zero_grad(set_to_none=True)
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    # FAULT same_weights
    if fault == "same_weights":
        # The ranks were once found to differ; DDP keeps them the same by itself.
        with torch.no_grad():
            for parameter in model.parameters():
                dist.broadcast(parameter, 0)
    # END FAULT
    if step % 20 == 0 and rank == 0:
        print(f"step {step}: loss {loss.item():.3f}")

leave()
