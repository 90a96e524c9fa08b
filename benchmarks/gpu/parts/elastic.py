"""Elastic bits: whether logical workers leave the same bits on one process and on two that share the device; their cost."""

import json
from statistics import median

from benchmarks.gpu.kit import Kit, launched
from benchmarks.gpu.sizes import SHARED, size
from esprof.elastic.verify.diff import diff

SETTLED = 4
"""Steps that are not timed."""


def measure(kit: Kit) -> None:
    for ests in (1, 2, 4):
        show_bits(kit, ests)
    one = show_step(kit, 1, 1)
    for ests, processes in ((4, 1), (4, 2)):
        took = show_step(kit, ests, processes)
        kit.show("ests_vs_one", took / (ests * one), "of so many steps of one EST", ests=ests, processes=processes)


def show_bits(kit: Kit, ests: int) -> None:
    """Whether the bits of all steps are the same on one process and on two; of one EST, the second process idles."""
    logs = [kit.out / "logs" / f"bits-{ests}-on-{processes}.jsonl" for processes in (1, 2)]
    steps = kit.pick(cuda=10, cpu=5)
    for processes, log in enumerate(logs, start=1):
        train(kit, ests, processes, "--hashes", str(log), "--steps", str(steps))
    difference = diff(*logs)
    kit.show(
        "equal_steps",
        100 * difference.steps_equal / steps,
        "% of the steps",
        ests=ests,
        outcome=difference.outcome,
        steps=steps,
    )


def show_step(kit: Kit, ests: int, processes: int) -> float:
    """Print what a step takes, which is returned, ms."""
    said = train(kit, ests, processes, "--steps", str(SETTLED + kit.pick(cuda=30, cpu=5)))
    steps = said["step_ms"][SETTLED:]
    kit.show("elastic_step_ms", steps, "ms", ests=ests, processes=processes)
    return median(steps)


def train(kit: Kit, ests: int, processes: int, *arguments: str) -> dict[str, list[float]]:
    job = kit.job("elastic", *size(kit, SHARED), "--ests", str(ests), *arguments)
    found: dict[str, list[float]] = json.loads(kit.output(launched(job, processes)[1:]).splitlines()[-1])
    return found
