"""A job of two layers whose allocations are written by hand, in µs and bytes."""

from typing import Any

import msgspec

from esprof.run.run import ModelBytes, Run
from esprof.run.schema import ALLOCATIONS, table
from tests.cases.graph import EPOCH_NS, Row, columns_of, gloo, numbered, op, python, run_of, step

STEP = 100
ENGINE = "autograd::engine::evaluate_function: "

LIFE_OF_A_STEP = (
    (2, 48, 1000),  # kept by layer 0
    (5, 48, 500),  # its output
    (12, 38, 1000),  # kept by layer 1
    (13, 14, 700),  # temporary in it
    (15, 38, 500),  # its output
    (21, 50, 10),  # the loss
    (32, 101, 200),  # gradient of layer 1, freed in the next step
    (42, 101, 200),  # gradient of layer 0
    (44, 46, 300),  # temporary in the backward pass
    (60, 61, 50),  # temporary in the update
)
"""(begin, end, bytes) of each block."""

MODEL = ModelBytes(parameters=400, gradients=400, buffers=0, optimizer=800, buckets=0, parameter_sizes=(200,))


def rows(number: int, *, modules: bool = True) -> list[Row]:
    at = STEP * number
    calls = [python("nn.Module: M", at, 20), *(python(f"nn.Module: M.layers.{n}", at + 10 * n, 9) for n in (0, 1))]
    return [
        step(number, at, at + STEP),
        *(calls if modules else []),
        *(numbered("aten::linear", at + 10 * n + 1, 7, 10 * number + n) for n in (0, 1)),
        *(numbered(f"{ENGINE}AddmmBackward0", at + 40 - 10 * n, 9, 10 * number + n, 1) for n in (0, 1)),
        op("Optimizer.step", at + 55, 40),
    ]


def job(
    *,
    limit: int | None = None,
    modules: bool = True,
    on_gpu: bool = False,
    model: ModelBytes | None = MODEL,
    steps: int = 3,
    ranks: int = 1,
) -> Run:
    """A job each of whose ranks holds 1,200 bytes, and has at most 3,210 more in a step."""
    events: list[Row] = [row for number in range(steps) for row in rows(number, modules=modules)]
    changes: list[dict[str, Any]] = []
    for number in range(steps):
        for address, (begin, end, size) in enumerate(LIFE_OF_A_STEP):
            for at, change in ((begin, size), (end, -size)):
                at_ns = EPOCH_NS + 1000 * (STEP * number + at)
                changes.append({"at_ns": at_ns, "on_gpu": on_gpu, "address": address, "bytes": change})
    changes.sort(key=lambda row: (row["at_ns"], row["bytes"] > 0))
    held = 5000  # 3,800 bytes beside the model
    for row in changes:
        held += row["bytes"]
        row["allocated"] = held
    if ranks > 1:
        events += [row for n in range(steps) for row in gloo(STEP * n + 50, STEP * n + 51, STEP * n + 54)]
    made = run_of(dict.fromkeys(range(ranks), events))
    tables = {"allocations": table(columns_of(changes), ALLOCATIONS), "events": made.events(0)}
    metas = tuple(msgspec.structs.replace(meta, model=model, memory_limit=limit) for meta in made.meta.ranks)
    return Run(msgspec.structs.replace(made.meta, ranks=metas), lambda name, rank: tables.get(name))
