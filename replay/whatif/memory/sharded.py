"""Memory of a rank whose model FSDP2 shards (ZeRO, stages 2 and 3; SC 2020, section 5)."""

from collections.abc import Iterable
from dataclasses import replace

import numpy as np

from esprof.core.types import Bytes
from esprof.replay.whatif.gradients.units import StepUnits
from esprof.replay.whatif.memory.blocks import MemoryBlocks, RankBlocks, Use
from esprof.replay.whatif.scenario import Declined


def with_sharded_units(memory: RankBlocks, steps: Iterable[StepUnits], ranks: int, *, regather: bool) -> RankBlocks:
    """The memory if each of `ranks` holds an equal share of parameters, gradients and states of optimizers.

    A unit's parameters are whole from its forward pass to the end of its backward pass; with `regather`, not between both.
    Its gradients are whole until they are reduced. For each exchange there is a copy of what it sends, for a moment. Raises
    Declined if gradients are kept from step to step.
    """
    if memory.gradients:
        raise Declined("gradients are kept from step to step: when each of them is whole is not known")
    blocks = memory.blocks
    for step in steps:
        blocks = _with_parameters(_with_reduced(blocks, step, ranks), step, regather)
    return replace(
        memory.with_blocks(blocks),
        parameters=_part(memory.parameters, ranks),
        optimizer=_part(memory.optimizer, ranks),
        buckets=0,
    )


def _with_parameters(blocks: MemoryBlocks, step: StepUnits, regather: bool) -> MemoryBlocks:
    """The blocks and those of gathered parameters."""
    found = list[tuple[int, int, Bytes]]()
    for number, unit in enumerate(step.all):
        whole = [(unit.forward_ns, unit.reduced_ns)]
        if regather and number:
            whole = [(unit.forward_ns, unit.forward_end_ns), (step.gathered_again_ns[number - 1], unit.reduced_ns)]
        found += [(begin, end, unit.size) for begin, end in whole]
        found += [(begin, begin + 1, unit.size) for begin, _ in whole]
    begin, end, size = (np.array(column, np.int64) for column in zip(*found, strict=True))
    return blocks.joined(_temporary(begin, end, size))


def _with_reduced(blocks: MemoryBlocks, step: StepUnits, ranks: int) -> MemoryBlocks:
    """The blocks with gradients of this step that are whole until they are reduced, and then a part of them."""
    owner = np.full(len(blocks), -1)
    for number, unit in enumerate(step.all):
        # What is made in the backward pass of a listed unit is not of the rest.
        owner[(blocks.begin_ns >= unit.backward_ns) & (blocks.begin_ns <= unit.reduced_ns)] = number
    reduced_ns = np.array([*(unit.reduced_ns for unit in step.all), 0])
    mine = (owner >= 0) & (blocks.use == Use.GRADIENT) & (blocks.end_ns > reduced_ns[owner])
    left, at_ns = blocks.where(mine), reduced_ns[owner[mine]]
    whole = replace(left, end_ns=at_ns)
    parts = replace(left, begin_ns=at_ns, bytes=-(-left.bytes // ranks))
    sent = _temporary(reduced_ns[:-1], reduced_ns[:-1] + 1, np.array(step.sizes))
    return blocks.where(~mine).joined(whole).joined(parts).joined(sent)


def _temporary(begin_ns: np.ndarray, end_ns: np.ndarray, size: np.ndarray) -> MemoryBlocks:
    use, grows = np.full(len(size), Use.TEMPORARY, np.int8), np.zeros(len(size), bool)
    return MemoryBlocks(begin_ns.astype(np.int64), end_ns.astype(np.int64), size.astype(np.int64), use, grows)


def _part(size: Bytes, ranks: int) -> Bytes:
    return -(-size // ranks)
