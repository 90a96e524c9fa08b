"""An elastic job whose rank 1 does something that rank 0 does not."""

import sys
import time
from pathlib import Path

import torch.distributed as dist

from esprof.core.errors import MismatchError
from esprof.elastic import Assignment, Checkpoint, Data, ElasticTrainer
from tests.cases.elastic import MODELS, OPTIMIZERS, Samples, loss_fn

what, folder = sys.argv[1:]
dist.init_process_group("gloo")
rank = dist.get_rank()
model = MODELS["mlp"]()


def loss(model, batch):
    if rank and what == "fails" and trainer.next_step == 2:
        raise RuntimeError("out of luck")
    return loss_fn(model, batch)


trainer = ElasticTrainer(
    model,
    OPTIMIZERS["sgd"](model.parameters()),
    loss,
    Data(Samples(64, tokens=False), batch_size=2),
    4,
    checkpoint=Checkpoint(folder),
)
try:
    for step in range(5):
        if (rank, step) == (1, 2):
            if what == "saves":
                trainer.save()
            elif what == "assigns":
                trainer.assign(Assignment.of([[0], [1, 2, 3]]))
            elif what == "waits":
                dist.barrier()
            elif what in {"ends", "cleans"}:
                sys.exit(0)
        trainer.step()
except MismatchError:
    if what != "cleans":
        raise
    time.sleep(10)  # It may wait for a file system, for one.
    Path(folder, "cleaned").write_text(f"rank {rank}")
finally:
    if what not in {"ends", "cleans"}:
        dist.destroy_process_group()
