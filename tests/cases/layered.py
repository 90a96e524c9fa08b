"""A recorded pipeline of two stages with layers, made by hand: GPipe, two microbatches.

A layer takes 400 µs forward and 800 backward; a pass takes 200 and 400 beside its layers.
"""

import msgspec

from tests.cases.graph import MAIN, Args, Row, numbered, op, python, step
from tests.cases.messages import marked, message

LAYERS = 2
"""Of each stage."""
_ACTIVATIONS, _WEIGHTS = [[4, 8], [8, 8]], [[8, 8]]


def shaped(row: Row, dims: list[list[int]]) -> Row:
    args = msgspec.structs.replace(row.args or Args(), dims=msgspec.Raw(msgspec.json.encode(dims)))
    return msgspec.structs.replace(row, args=args)


def forward(stage: int, batch: int, start: float) -> list[Row]:
    """A forward pass of 1 ms: its layers, then what else it does."""
    rows = [marked(f"PP:{stage}F{batch}", start, 1000), op("aten::embedding", start + 800, 200)]
    for layer in range(LAYERS):
        at = start + 400 * layer
        rows.append(python(f"nn.Module: Part.blocks.{layer}", at, 400))
        rows.append(shaped(numbered("aten::linear", at + 5, 390, _number(batch, layer)), _ACTIVATIONS))
    return rows


def backward(stage: int, batch: int, start: float) -> list[Row]:
    """A backward pass of 2 ms: a loss, then the layers, each with 200 µs for its gradients."""
    rows = [marked(f"PP:{stage}B{batch}", start, 2000), op("aten::cross_entropy", start, 400)]
    for layer in range(LAYERS):
        at, node = start + 400 + 800 * (LAYERS - 1 - layer), "autograd::engine::evaluate_function: "
        rows += [
            numbered(f"{node}AddmmBackward0", at, 600, _number(batch, layer), forward_thread=MAIN),
            shaped(op("aten::mm", at, 600), _ACTIVATIONS),
            op(f"{node}torch::autograd::AccumulateGrad", at + 600, 200),
            shaped(op("torch::autograd::AccumulateGrad", at + 600, 200), _WEIGHTS),
        ]
    return rows


def _number(batch: int, layer: int) -> int:
    return 10 * batch + layer + 1


def rows() -> dict[int, list[Row]]:
    """Messages take 400 µs; the optimizer takes 300."""
    first = [
        *forward(0, 0, 1000),
        *message("send", 1, 2000, 2036),
        *forward(0, 1, 2050),
        *message("send", 1, 3050, 3890),
        *message("recv", 1, 3900, 7100),
        *backward(0, 0, 7100),
        *message("recv", 1, 9100, 9520),
        *backward(0, 1, 9520),
    ]
    second = [
        *message("recv", 0, 500, 2420),
        *forward(1, 0, 2420),
        *message("recv", 0, 3420, 3840),
        *forward(1, 1, 3840),
        *backward(1, 0, 4840),
        *message("send", 0, 6840, 6880),
        *backward(1, 1, 6890),
        *message("send", 0, 8890, 9300),
    ]
    after = [marked("Optimizer.step#AdamW.step", 11600, 300), op("aten::addcdiv_", 11600, 300)]
    return {
        rank: [step(1, 0, 12000), op("aten::zero_", 0, 400), *of_rank, *after]
        for rank, of_rank in enumerate((first, second))
    }
