"""An elastic job for the tests whose number of processes changes: trains until it is asked to leave.

    launched.py FOLDER

FOLDER gets its checkpoints, its hashes and its Run, and may hold a plan.
"""

import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

import torch.distributed as dist

from tests.cases.elastic import loss_fn
from tests.cases.elastic_job import small_trainer


def main():
    folder = Path(sys.argv[1])
    dist.init_process_group("gloo")

    def loss(model, batch):
        time.sleep(0.003)
        return loss_fn(model, batch)

    trainer = small_trainer(
        loss=loss,
        folder=str(folder / "checkpoints"),
        every=10,
        hash_log=folder / "log.jsonl",
        telemetry=folder / "run",
        plan=folder / "plan.json",
        prove_every=0,
    )
    while True:
        trainer.step()


if __name__ == "__main__":
    main()
