"""Trains a GPT on verses as a pipeline of two stages, which this script starts.

python train.py
"""

import gc
import os
import socket

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
import torch.nn.functional as F
from data import Tokeniser, make_tokens
from model import stages
from torch.distributed.pipelining import PipelineStage, Schedule1F1B

from benchmarks.diagnosis.jobs.common import leave, read_arguments

BATCH = 16
MICROBATCHES = 4
RANKS = 2


# FAULT statistics
class Statistics:
    """Writes down mean, spread and extremes of what each layer passes on."""

    def __init__(self, module, file, every):
        self.file = file.open("w")
        for number, layer in enumerate(module.modules()):
            if number < every:
                layer.register_forward_hook(self.note)

    def note(self, layer, _, output):
        numbers = [output.mean(), output.std(), output.min(), output.max(), output.abs().median()]
        self.file.write(type(layer).__name__ + "".join(f",{number.item():.4g}" for number in numbers) + "\n")
        self.file.flush()


# END FAULT


def loss_of(said, tokens):
    return F.cross_entropy(said.flatten(0, 1), tokens.flatten())


def train(rank, port, options):
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(RANKS)}
    dist.init_process_group("gloo")
    torch.manual_seed(options.seed)
    torch.set_num_threads(1)
    layers = [2] * RANKS
    # FAULT heavy_stage
    if options.fault == "heavy_stage":
        layers = [3 if stage == options.rank else 1 for stage in range(RANKS)]
    # END FAULT
    module = stages(layers)[rank]
    # FAULT statistics
    if options.fault == "statistics" and rank == options.rank:
        Statistics(module, options.files / "statistics.csv", round(options.strength))
    # END FAULT
    microbatches = MICROBATCHES
    # FAULT crumbs
    if options.fault == "crumbs":
        microbatches = BATCH
    # END FAULT
    stage = PipelineStage(module, rank, RANKS, torch.device("cpu"))
    schedule = Schedule1F1B(stage, microbatches, loss_fn=loss_of)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-3, fused=True)
    verses, tokeniser = make_tokens(), Tokeniser()
    order = torch.randperm(len(verses), generator=torch.Generator().manual_seed(options.seed))
    for step in range(options.steps):
        tokens = verses[order.roll(-step * BATCH)[:BATCH]]
        # FAULT tokenise
        if options.fault == "tokenise":
            tokens = tokens.clone()
            for row in range(round(options.strength)):
                read = torch.tensor(tokeniser.tokens(tokeniser.texts[(step + row) % len(tokeniser.texts)]))
                tokens[row % BATCH, : len(read)] = read
        # END FAULT
        optimizer.zero_grad()
        if rank == 0:
            schedule.step(tokens[:, :-1])
        else:
            schedule.step(target=tokens[:, 1:])
        optimizer.step()
        # FAULT collect
        if options.fault == "collect" and step % round(options.strength) == 0:
            gc.collect()  # memory grew once
        # END FAULT
    leave()


def main():
    options = read_arguments(steps=60, needs_files=True)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    mp.spawn(train, (port, options), nprocs=RANKS)


if __name__ == "__main__":
    main()
