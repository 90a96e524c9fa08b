"""Random elastic jobs that move, are killed, and go on elsewhere, against the same jobs on one process without a stop."""

import json
import os
import random
import signal
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import pytest
import torch.distributed as dist

from esprof.elastic import Assignment, Checkpoint
from tests.cases.elastic import (
    History,
    Job,
    loss_fn,
    on_doomed_processes,
    on_processes,
    state_hash,
    static_curve,
    trainer,
)
from tests.cases.marks import soak

pytestmark = [
    pytest.mark.integration,
    # Where fp16's first steps are skipped, torch holds that the scheduler came too early.
    pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step"),
]

STEPS = 12


@dataclass(frozen=True)
class Life:
    """What the job does from one start to its end."""

    world: int
    history: History
    until: int
    """The step before which it saves and ends, if nobody kills it."""
    every: int
    """Steps from one checkpoint to the next; 0 for none on the way."""
    killed: tuple[int, int, int] | None
    """(step, rank, batch): the rank kills itself before its batch of that number in that step."""


def random_job(draw: random.Random) -> Job:
    amp = draw.choice([None, None, "bf16", "fp16"])
    codecs = ["none", "fp16", "bf16"] if amp == "fp16" else ["none", "fp16", "bf16", "topk:0.1"]
    later = [(draw.randrange(1, STEPS), draw.choice(codecs))] if draw.random() < 0.5 else []
    n_est, accumulate = draw.randint(1, 9), draw.randint(1, 3)
    return Job(
        model=draw.choice(["mlp", "conv", "gpt"]),
        optimizer=draw.choice(["sgd", "adam", "adamw"]),
        n_est=n_est,
        steps=STEPS,
        accumulate=accumulate,
        samples=2 * n_est * accumulate * draw.randint(1, 4) + draw.randint(0, 5),
        clip_norm=draw.choice([None, 0.5]),
        amp=amp,
        codecs=((0, draw.choice(codecs)), *later),
    )


def random_parts(draw: random.Random, n_est: int, world: int) -> list[list[int]]:
    """Any ESTs on any ranks, in any order; some ranks may idle."""
    parts: list[list[int]] = [[] for _ in range(world)]
    for est in draw.sample(range(n_est), n_est):
        draw.choice(parts).append(est)
    return parts


def random_lives(draw: random.Random, job: Job) -> list[Life]:
    """Two to four of them, of which the last ends with the job."""
    ends = sorted(draw.sample(range(2, STEPS), draw.randint(1, 3)))
    lives = []
    for until in [*ends, STEPS]:
        world = draw.randint(1, 4)
        history = {step: random_parts(draw, job.n_est, world) for step in {0, *draw.sample(range(STEPS), 2)}}
        killed = None
        if until < STEPS and draw.random() < 0.7:
            parts = history[max(step for step in history if step <= until)]
            rank = draw.choice([rank for rank, ests in enumerate(parts) if ests])
            killed = until, rank, draw.randrange(len(parts[rank]) * job.accumulate)
        lives.append(Life(world, history, until, draw.randint(0, 3), killed))
    return lives


def live(job: Job, life: Life, folder: Path, log: Path) -> None:
    """Train on this rank from the last checkpoint on; rank 0 notes the bits after each step."""
    taken = count()  # A number would belong to each EST.

    def loss(model, batch):
        if life.killed == (made.next_step, dist.get_rank(), next(taken)):
            os.kill(os.getpid(), signal.SIGKILL)
        return loss_fn(model, batch)

    made = trainer(job, life.history[0], loss_fn=loss, checkpoint=Checkpoint(folder, every=life.every))
    earlier = [step for step in life.history if step <= made.next_step]
    made.assign(Assignment.of(life.history[max(earlier)]))
    with log.open("a") as notes:
        while made.next_step < (STEPS if life.killed else life.until):
            if made.next_step in life.history:
                made.assign(Assignment.of(life.history[made.next_step]))
            taken = count()
            done = made.step()
            bits = state_hash(made.state.model, made.state.optimizers[0]) + "".join(loss.hex() for loss in done.losses)
            if dist.get_rank() == 0:
                notes.write(json.dumps([done.step, bits]) + "\n")
                notes.flush()
    made.save()
    made.close()


@pytest.mark.parametrize("seed", [*range(3), *(soak(seed) for seed in range(3, 50))])
def test_a_job_moved_and_killed_at_random_has_the_bits_of_one_that_never_stopped(seed, tmp_path):
    draw = random.Random(seed)
    job = random_job(draw)
    lives = random_lives(draw, job)
    folder, log = tmp_path / "checkpoints", tmp_path / "bits.jsonl"
    for life in lives:
        call = (job, life, folder, log)
        if life.killed:
            code = on_doomed_processes(life.world, live, call, life.killed[1])
            assert code == -signal.SIGKILL, (seed, life, code)
        else:
            on_processes(life.world, live, [call])
    bits = dict(json.loads(line) for line in log.read_text().splitlines())
    assert [bits[step] for step in range(STEPS)] == static_curve(job), (seed, job, lives)
