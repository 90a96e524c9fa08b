"""An elastic job that has itself tuned: on rank 1 each EST takes longer. It ends after a round. Argument: its Run."""

import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch
import torch.distributed as dist

from esprof.elastic import Tuning
from tests.cases.elastic import loss_fn
from tests.cases.elastic_job import small_trainer

SLOW_S = 0.03


def main():
    dist.init_process_group("gloo")

    def loss(model, batch):
        time.sleep(SLOW_S if dist.get_rank() == 1 else SLOW_S / 10)
        return loss_fn(model, batch)

    trainer = small_trainer(loss=loss, tuning=Tuning(sys.argv[1], compression=True))
    ends = torch.zeros(1)
    while not ends:
        trainer.step()
        ends.fill_((Path(sys.argv[1]) / "rounds.jsonl").exists())
        dist.broadcast(ends, 0)
    trainer.close()
    dist.barrier()
    dist.destroy_process_group()
    time.sleep(0.5)  # gloo may abort a process that ends right after its last collective.
    os._exit(0)


if __name__ == "__main__":
    main()
