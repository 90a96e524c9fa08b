"""An elastic job of two ranks, of which one takes four times as long for an EST: by sleeping, whatever else runs here."""

import sys
import time

import torch.distributed as dist

from esprof.elastic import Data, ElasticTrainer, Proof
from tests.cases.elastic import MODELS, OPTIMIZERS, Samples, loss_fn

SLEEPS_S = (0.02, 0.08)

dist.init_process_group("gloo")
model = MODELS["mlp"]()


def slow_loss(model, batch):
    time.sleep(SLEEPS_S[dist.get_rank()])
    return loss_fn(model, batch)


trainer = ElasticTrainer(
    model,
    OPTIMIZERS["sgd"](model.parameters()),
    slow_loss,
    Data(Samples(256, tokens=False), batch_size=2),
    8,
    proof=Proof(prove_every=0),
    telemetry=sys.argv[1],
)
for _ in range(12):
    trainer.step()
trainer.flush()
dist.destroy_process_group()
