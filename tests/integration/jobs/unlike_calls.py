"""An elastic job one of whose ranks does something that the other does not."""

import sys
import time
from pathlib import Path

import torch.distributed as dist

from esprof.core.errors import MismatchError
from esprof.elastic import Assignment, Checkpoint, Data, ElasticTrainer
from tests.cases.elastic import MODELS, OPTIMIZERS, Samples, loss_fn

what, folder, *lone = sys.argv[1:]
lone = int(lone[0]) if lone else 1
dist.init_process_group("gloo")
rank = dist.get_rank()
model = MODELS["mlp"]()


def loss(model, batch):
    if rank == lone and what == "fails" and trainer.next_step == 2:
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
        if (rank, step) == (lone, 2):
            if what == "saves":
                trainer.save()
            elif what == "assigns":
                trainer.assign(Assignment.of([[0], [1, 2, 3]]))
            elif what == "waits":
                dist.barrier()
            elif what in {"ends", "cleans"}:
                sys.exit(0)
            elif what == "raises":
                raise ValueError("no such file")
            elif what == "stops":
                break
            elif what == "flushes":
                trainer.flush()
                break
        trainer.step()
        if what == "agrees" and trainer.agree(step == 2 if rank == lone else None, rank=lone):
            print(f"rank {rank} stops after step {step}")
            break
except MismatchError:
    if what != "cleans":
        raise
    time.sleep(10)  # It may wait for a file system, for one.
    Path(folder, "cleaned").write_text(f"rank {rank}")
finally:
    if what not in {"ends", "cleans"}:
        dist.destroy_process_group()
