"""An elastic job of two ranks that is served: one takes four times as long for an EST, by sleeping. It ends when `stop` lies
beside its Run."""

import sys
import time
from pathlib import Path

import msgspec
import torch
import torch.distributed as dist

from esprof.elastic import ElasticTrainer, Proof
from esprof.trace.history import read
from esprof.trace.live import LiveStep
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


def tell_step(result):
    global ended
    began, ended = ended, time.perf_counter()
    if rank == 0:
        ests = [len(ests) for ests in trainer.assignment.ests]
        versions = [event.version for event in read(run) if event.what == "adopted"]
        step = LiveStep(
            step=result.step,
            took_us=1e6 * (ended - began),
            busy_us=[1e6 * count * sleeps for count, sleeps in zip(ests, SLEEPS_S, strict=True)],
            ests=ests,
            version=versions[-1] if versions else None,
        )
        with (run / "live.jsonl").open("ab") as file:
            file.write(msgspec.json.encode(step) + b"\n")


trainer = ElasticTrainer(
    model,
    OPTIMIZERS["sgd"](model.parameters()),
    slow_loss,
    Samples(256, tokens=False),
    8,
    batch_size=2,
    proof=Proof(verify_every=0),
    telemetry=run,
    plan=run / "plan.json",
    after_step=tell_step,
)
ended = time.perf_counter()
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
