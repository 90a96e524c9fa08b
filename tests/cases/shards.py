"""Steps of FSDP2 between CPUs made by hand: reduce-scatters of gradients, for which the backward pass waits."""

import msgspec

from esprof.replay.whatif.gradients.buckets import MIB
from tests.cases.gloo_buckets import BACKWARD_MS, COMMUNICATION_MS, EVALUATE, GRADIENT, MS, gloo_collective, row
from tests.cases.graph import GLOO, op, run_of, step

CLOSING_MS = 5.0


def scattered(launched, took, elements, dtype="float"):
    """A reduce-scatter of 32-bit floats between two ranks, which gloo implements by an all-reduce of that name."""
    call, shape = f"[[{elements // 2}], [{elements}], [], [], [], []]".encode(), f"[[{elements}]]".encode()
    return [
        row("cpu_op", "c10d::_reduce_scatter_base_", launched, 40, dims=call),
        row(
            "user_annotation",
            "gloo:all_reduce",
            launched + 20,
            took,
            GLOO,
            shape,
            msgspec.json.encode([dtype]),
        ),
    ]


def shards_step(sizes, *, dtype="float", of_ddp=False, count=1):
    """A step in which gradients of `sizes` MiB become ready every 10 ms, each reduce-scattered in 20 ms per MiB; with
    `of_ddp` the last one is all-reduced instead. A loss, all-reduced within 1 ms, and 5 ms of an optimizer follow."""
    rows, now = [], 0.0
    for number, size in enumerate(sizes):
        rows.append(op(f"{EVALUATE}AddmmBackward0", now, BACKWARD_MS * MS - 100))
        now += BACKWARD_MS * MS
        took, elements = size * COMMUNICATION_MS * MS, int(size * MIB) // 4
        if of_ddp and number == len(sizes) - 1:
            rows.append(op(EVALUATE + GRADIENT, now - 100, 90))
            rows += gloo_collective(now - 50, now - 30, took, elements)
        else:
            rows += scattered(now, took, elements, dtype)
        now += took + 20
    rows += gloo_collective(now + 10, now + 20, MS, 1)
    now += MS + 20
    rows.append(op("Optimizer.step", now, CLOSING_MS * MS))
    return [step(count, 0, now + CLOSING_MS * MS), *rows]


def shards_run(sizes, **how):
    return run_of({rank: shards_step(sizes, **how) for rank in (0, 1)})
