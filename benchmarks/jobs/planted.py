"""A recurrent network whose work is the length of its sequences, so that a change of a known size can be planted.

A sequence of kind `none` has 100 parts; those of the other kinds are longer, in some steps or in all (`KINDS`, `TURNS`).
Several processes average their gradients by one all-reduce. It is a part of `benchmarks.check_trial`, which forks it: what
takes longest of a small job is to import PyTorch.
"""

import json
import os
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn

import esprof
from benchmarks.jobs.loop import worker

WIDTH, OUTPUTS, BATCH = 32, 8, 8
PERIOD = 10
"""Every how many steps one is slow, in a job with slow steps."""
DRIFT = 0.2
"""By how much more work the last step of a drifting job is than its first."""
HICCUP = 30
"""Steps' worth of work that the one hiccup takes: a tenth of the whole job's."""

KINDS: dict[str, Callable[[int, int], float]] = {
    "none": lambda step, steps: 1.0,
    "work+3%": lambda step, steps: 1.03,
    "work+5%": lambda step, steps: 1.05,
    "work+10%": lambda step, steps: 1.1,
    "work+20%": lambda step, steps: 1.2,
    "periodic": lambda step, steps: 2.0 if step % PERIOD == 0 else 1.0,
    "drift": lambda step, steps: 1 + DRIFT * step / steps,
    "hiccup": lambda step, steps: float(HICCUP) if step == steps // 2 else 1.0,
}
"""The work of a step of each kind, as a multiple of that of a plain one."""

STRETCH = 10
TURNS: dict[str, Callable[[int, int], float]] = {
    f"turns+{pct}%": lambda step, steps, pct=pct: 1 + pct / 100 * (step // STRETCH % 2) for pct in (3, 5, 10, 20)
}
"""Jobs in which stretches of so many steps, as they are and with more work, alternate: the machine treats both alike."""


def train(kind: str, steps: int, length: int) -> list[float]:
    """CPU time in ms of each step."""
    cell, head = nn.Linear(2 * WIDTH, WIDTH), nn.Linear(WIDTH, OUTPUTS)
    parameters = [*cell.parameters(), *head.parameters()]
    optimizer = torch.optim.SGD(parameters, lr=1e-3)
    inputs = torch.randn(BATCH, WIDTH)
    targets = inputs[:, :OUTPUTS].abs()
    work = (KINDS | TURNS)[kind]
    cpu_ms = []
    before = time.thread_time()
    for step in range(steps):
        optimizer.zero_grad()
        state = torch.zeros(BATCH, WIDTH)
        for _ in range(round(length * work(step, steps))):
            state = torch.tanh(cell(torch.cat([inputs, state], dim=1)))
        F.mse_loss(head(state), targets).backward()
        if dist.is_initialized():
            average(parameters)
        optimizer.step()
        now = time.thread_time()
        cpu_ms.append(round(1e3 * (now - before), 4))
        before = now
    return cpu_ms


def average(parameters: Iterable[nn.Parameter]) -> None:
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(flat)
    for gradient, averaged in zip(gradients, flat.split([one.numel() for one in gradients]), strict=True):
        gradient.copy_(averaged.view_as(gradient) / dist.get_world_size())


def recorded(kind: str, run: Path, rank: int, ranks: int, port: int, steps: int = 300, length: int = 100) -> None:
    """Train as one of `ranks` processes that meet at `port` of this host, recorded into `run`.

    Rank 0 leaves `run`.json: what each step took of its thread's CPU time, ms, which other work on the machine
    moves much less than its wall time.
    """
    torch.set_num_threads(1)
    if ranks > 1:
        os.environ |= {
            "RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }
    # A short window, as a job has one; what is compared are the steps outside of it.
    with worker(seed=0) if ranks > 1 else nullcontext(), esprof.record(run, steps=4, stack_steps=0):
        cpu_ms = train(kind, steps, length)
    if rank == 0:
        run.with_suffix(".json").write_text(json.dumps(cpu_ms))
