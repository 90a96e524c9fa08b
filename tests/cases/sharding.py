"""A step of DDP between CPUs, made by hand, of a model with a list of layers, for changes to FSDP2.

The model has a stem, two layers and a head; each has weights of 1 MiB. Forward passes take 10 ms each, backward passes 20;
a gradient is added up in the last of them. The all-reduce of all gradients begins when the last is there and takes 20 ms per
MiB; the update takes 8 ms.
"""

import msgspec

from esprof.replay.whatif.gradients.buckets import MIB
from tests.cases.gloo_buckets import ELEMENTS, EVALUATE, GRADIENT, MS, gloo_collective, row
from tests.cases.graph import MAIN, Row, numbered, op, python, run_of, step
from tests.cases.messages import marked

PARTS = ("stem", "0", "1", "head")
FORWARD_MS, BACKWARD_MS, REDUCE_MS, UPDATE_MS = 10.0, 20.0, 80.0, 8.0
UNIT = MIB


def at_ms(row: Row) -> Row:
    return msgspec.structs.replace(row, ts=MS * row.ts, dur=MS * row.dur)


def ddp_step(number: int = 1, start: float = 0.0, *, shapes: bool = True, modules: bool = True) -> list[Row]:
    """The step from `start`, in ms."""
    rows, count = list[Row](), len(PARTS)
    for at, part in enumerate(PARTS):
        begin = start + FORWARD_MS * at
        rows.append(at_ms(numbered("aten::linear", begin + 0.1, FORWARD_MS - 0.2, 10 * number + at)))
        if part.isdigit() and modules:
            rows.append(at_ms(python(f"nn.Module: Model.layers.{part}", begin, FORWARD_MS)))
    now = start + FORWARD_MS * count
    for at in reversed(range(count)):
        rows.append(
            at_ms(numbered(f"{EVALUATE}AddmmBackward0", now, BACKWARD_MS - 1, 10 * number + at, forward_thread=MAIN))
        )
        rows.append(at_ms(op(EVALUATE + GRADIENT, now + BACKWARD_MS - 1, 1)))
        dims = f"[[{ELEMENTS}]]".encode() if shapes else None
        rows.append(row("cpu_op", GRADIENT, MS * (now + BACKWARD_MS - 0.9), 0.1 * MS, dims=dims))
        now += BACKWARD_MS
    rows += gloo_collective(MS * (now - 0.5), MS * now, MS * REDUCE_MS, count * ELEMENTS)
    now += REDUCE_MS
    rows += [at_ms(op("aten::to", now, 1)), at_ms(marked("Optimizer.step#AdamW.step", now + 1, UPDATE_MS))]
    rows.append(at_ms(op("aten::addcdiv_", now + 1, UPDATE_MS)))
    end = now + 1 + UPDATE_MS + 1
    return [step(number, MS * start, MS * end), *rows, at_ms(op("aten::item", end - 1, 1))]


def ddp_run(**how: bool):
    return run_of({rank: ddp_step(**how) for rank in (0, 1)})
