"""An elastic job of two ranks that is served: one takes four times as long for an EST, by sleeping. It ends when `stop` lies
beside its Run."""

import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist

from esprof.elastic import Data, ElasticTrainer, Placement, Proof
from tests.cases.elastic import MODELS, OPTIMIZERS, Samples, loss_fn

SLEEPS_S = (0.01, 0.04)
TOLD = 15
"""Steps after which the job writes its account of them."""
run = Path(sys.argv[1])

dist.init_process_group("gloo")
rank = dist.get_rank()
model = MODELS["mlp"]()


def slow_loss(model, batch):
    time.sleep(SLEEPS_S[rank])
    return loss_fn(model, batch)


trainer = ElasticTrainer(
    model,
    OPTIMIZERS["sgd"](model.parameters()),
    slow_loss,
    Data(Samples(256, tokens=False), batch_size=2),
    8,
    proof=Proof(prove_every=0),
    telemetry=run,
    placement=Placement(plan=run / "plan.json"),
)
ends = torch.zeros(1)
while not ends.item():
    trainer.step()
    if trainer.next_step == TOLD:
        trainer.flush()
    ends.fill_((run.parent / "stop").exists())
    dist.broadcast(ends, 0)
trainer.close()
dist.destroy_process_group()
time.sleep(0.5)  # gloo may abort a process that ends right after its last collective.
