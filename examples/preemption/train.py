"""Train a small network on any number of processes; on SIGTERM, save and exit with code 75 to be started again.

`job.sbatch` runs it under Slurm; `scheduler.py` simulates a scheduler on a machine without one.
"""

import argparse
import os
import time

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from esprof.elastic import Checkpoint, Data, Drain, Drained, ElasticTrainer


def loss_of(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, labels = batch
    return nn.functional.cross_entropy(model(inputs), labels)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--folder", required=True, help="the job's checkpoints, on a file system that all hosts share")
    parser.add_argument("--within", type=float, default=50, help="seconds from SIGTERM until the job has to be gone")
    parser.add_argument("--pause", type=float, default=0, help="seconds that each step takes longer")
    options = parser.parse_args()
    dist.init_process_group("cpu:gloo,cuda:nccl" if torch.cuda.is_available() else "gloo")
    device = f"cuda:{os.environ['LOCAL_RANK']}" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    samples = TensorDataset(torch.randn(256, 16), torch.randint(4, (256,)))
    model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Dropout(0.2), nn.Linear(32, 4)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    # All processes get SIGTERM here, and 75 tells the scheduler that there is more to do; 0 that the job is done.
    drain = Drain(exit_code=75, within_s=options.within)
    checkpoint = Checkpoint(options.folder, every=8)
    trainer = ElasticTrainer(
        model, optimizer, loss_of, Data(samples, batch_size=8), n_est=4, checkpoint=checkpoint, drain=drain
    )
    try:
        for result in trainer.fit(epochs=4):
            time.sleep(options.pause)
            if dist.get_rank() == 0:
                print(f"step {result.step}: loss {result.loss:.6f}", flush=True)
    except Drained as drained:
        if dist.get_rank() == 0:
            print(f"leaves before step {drained.step}: {drained.reason}", flush=True)
        raise
    trainer.close()
    dist.destroy_process_group()
    time.sleep(0.5)  # PyTorch 2.13 may abort a process that ends right after its last collective on gloo.


if __name__ == "__main__":
    main()
