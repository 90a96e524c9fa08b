"""Blocks of memory that tensors take during the steps of a rank, from its recorded allocations."""

from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np

from esprof.core.types import Bytes, Ns, Rank
from esprof.replay.whatif.memory.passes import BackwardPasses, backward_passes
from esprof.replay.whatif.scenario import Declined
from esprof.run.run import Run
from esprof.run.schema import Table

NEVER = int(np.iinfo(np.int64).max)
"""End of a block that is not freed."""

_GPU_ROUNDING = 512
"""Sizes on a GPU are multiples of it: `kMinBlockSize` of PyTorch's allocator."""


class Use(IntEnum):
    """What a block is used for."""

    ACTIVATION = 0
    """Made outside of backward passes, and kept for one: activations, and the batch itself."""
    GRADIENT = 1
    """Made in a backward pass, and kept beyond its end."""
    TEMPORARY = 2


@dataclass(frozen=True)
class MemoryBlocks:
    """Blocks of memory. Arrays of shape (blocks,)."""

    begin_ns: np.ndarray
    """int64, ns since the Unix epoch on the rank's clock."""
    end_ns: np.ndarray
    """int64, when each is freed; `NEVER` if it is not."""
    bytes: np.ndarray
    """int64."""
    use: np.ndarray
    """int8, a `Use`."""
    grows: np.ndarray
    """bool, whether its size is proportional to that of the batch."""

    def __len__(self) -> int:
        return len(self.bytes)

    def at(self, moment: Ns) -> np.ndarray:
        """Mask of the blocks that are there at this time."""
        mask: np.ndarray = (self.begin_ns <= moment) & (moment < self.end_ns)
        return mask

    def totals(self) -> tuple[np.ndarray, np.ndarray]:
        """(times at which blocks are made or freed, ns, ascending; bytes of all blocks after each), int64."""
        freed = self.end_ns < NEVER
        at_ns = np.concatenate([self.begin_ns, self.end_ns[freed]])
        change = np.concatenate([self.bytes, -self.bytes[freed]])
        order = np.lexsort((change > 0, at_ns))  # At one time, what is freed makes room first.
        return at_ns[order], np.cumsum(change[order])

    def joined(self, other: "MemoryBlocks") -> "MemoryBlocks":
        """These blocks and others."""
        fields = ("begin_ns", "end_ns", "bytes", "use", "grows")
        return MemoryBlocks(*(np.concatenate([getattr(self, name), getattr(other, name)]) for name in fields))

    def where(self, chosen: np.ndarray) -> "MemoryBlocks":
        return MemoryBlocks(
            self.begin_ns[chosen], self.end_ns[chosen], self.bytes[chosen], self.use[chosen], self.grows[chosen]
        )


@dataclass(frozen=True)
class RankBlocks:
    """The memory of a rank: what it holds from step to step, and the blocks that come and go."""

    rank: Rank
    on_gpu: bool
    blocks: MemoryBlocks
    passes: BackwardPasses
    span_ns: tuple[Ns, Ns]
    """Begin and end of the steps that count."""
    parameters: Bytes
    gradients: Bytes
    """Gradients that are kept from step to step."""
    buffers: Bytes
    optimizer: Bytes
    buckets: Bytes
    other: Bytes
    """Anything else that a GPU holds all the time."""

    @property
    def held(self) -> Bytes:
        """All that is held from step to step."""
        return self.parameters + self.gradients + self.buffers + self.optimizer + self.buckets + self.other

    def with_blocks(self, blocks: MemoryBlocks) -> "RankBlocks":
        return replace(self, blocks=blocks)


def rank_blocks(run: Run, rank: Rank, steps: tuple[int, ...]) -> RankBlocks:
    """The memory of `rank` in the recorded `steps`, ascending. Raises Declined if it was not recorded.

    The first step does not count if there are more: it frees what was allocated before the recording.
    """
    table, model = run.allocations(rank), run.rank(rank).model
    if not len(table) or model is None:
        raise Declined(f"the allocations of rank {rank} were not recorded: use `esprof record --memory`")
    on_gpu = bool((table.ints("on_gpu") == 1).any())
    table = table.where(table.ints("on_gpu") == int(on_gpu))
    events = run.events(rank)
    ends_ns, span = _step_ends(events, steps)
    passes = backward_passes(events)
    if not len(passes.begin_ns):
        raise Declined(f"no backward pass of rank {rank} was recorded")
    begin, end, size = _lives(table)
    use, is_forward = _uses(begin, end, passes, ends_ns)
    sizes = _rounded(np.array(model.parameter_sizes, np.int64)) if on_gpu else np.array(model.parameter_sizes)
    # Gradients that the last whole step made. Those of FSDP2 are parts of larger blocks.
    made = (use == Use.GRADIENT) & (begin <= span[1]) & (end > span[1])
    alike = made & np.isin(size, sizes)
    kept = max(0, model.gradients - int(size[alike if alike.any() else made].sum()))
    of_gradient = (passes.of(begin) >= 0) & np.isin(size, sizes) & (kept > 0)
    grows = (is_forward | (passes.of(begin) >= 0)) & (use != Use.GRADIENT) & ~of_gradient
    found = RankBlocks(
        rank=rank,
        on_gpu=on_gpu,
        blocks=MemoryBlocks(begin, end, size, use, grows),
        passes=passes,
        span_ns=span,
        parameters=model.parameters,
        gradients=kept,
        buffers=model.buffers,
        optimizer=model.optimizer,
        buckets=model.buckets,
        other=0,
    )
    return replace(found, other=_other(table, found)) if on_gpu else found


def grown(sizes: np.ndarray, factor: float, *, on_gpu: bool) -> np.ndarray:
    """Sizes in bytes, `factor` times as large, as the allocator rounds them."""
    larger: np.ndarray = np.rint(sizes * factor).astype(np.int64)
    return _rounded(larger) if on_gpu else larger


def _rounded(sizes: np.ndarray) -> np.ndarray:
    up: np.ndarray = -(-sizes // _GPU_ROUNDING) * _GPU_ROUNDING
    return up


def _step_ends(events: Table, steps: tuple[int, ...]) -> tuple[np.ndarray, tuple[Ns, Ns]]:
    """Ends of all recorded steps, ns, ascending; begin and end of those that count."""
    marks = events.where(np.flatnonzero(events.is_kind("step")))
    begin, number = marks.ints("start_ns"), marks.ints("step")
    end = begin + marks.ints("dur_ns")
    count = np.isin(number, steps[1:] or steps)
    if not count.any():
        raise Declined("no whole step was recorded")
    return np.sort(end), (int(begin[count].min()), int(end[count].max()))


def _lives(table: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(begin ns, end ns, bytes) of each block that was allocated during the recording."""
    alive: dict[int, int] = {}
    begin, end, size = list[int](), list[int](), list[int]()
    columns = (table.ints(name, 0).tolist() for name in ("at_ns", "address", "bytes"))
    for at, address, bytes_ in zip(*columns, strict=True):
        if bytes_ > 0:
            alive[address] = len(size)
            begin.append(at)
            end.append(NEVER)
            size.append(bytes_)
        elif (block := alive.pop(address, None)) is not None:
            end[block] = at
    return np.array(begin, np.int64), np.array(end, np.int64), np.array(size, np.int64)


def _uses(
    begin: np.ndarray, end: np.ndarray, passes: BackwardPasses, ends_ns: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The use of each block, and whether it was made in a forward pass: neither in a backward pass nor in an update, which
    lies between the last backward pass of a step and the end of the step."""
    inside, following = passes.of(begin), np.searchsorted(passes.begin_ns, begin, side="right")
    starts = np.append(passes.begin_ns, NEVER)
    is_kept = (inside < 0) & (following < len(passes.begin_ns)) & (end > starts[following])
    # The next step that ends: within an update, no backward pass begins before that.
    step_end = np.append(ends_ns, NEVER)[np.searchsorted(ends_ns, begin, side="right")]
    is_update = (inside < 0) & (starts[following] > step_end)
    use = np.full(len(begin), Use.TEMPORARY, np.int8)
    use[is_kept & ~is_update] = Use.ACTIVATION
    use[(inside >= 0) & (end > passes.end_ns[inside])] = Use.GRADIENT
    return use, (inside < 0) & ~is_update


def _other(table: Table, found: RankBlocks) -> Bytes:
    """What the GPU's allocator had given out at the begin of the span beside all that is known."""
    at = int(np.searchsorted(table.ints("at_ns"), found.span_ns[0], side="right")) - 1
    at = max(at, 0)
    moment = int(table.ints("at_ns")[at])
    known = found.held + int(found.blocks.bytes[found.blocks.at(moment)].sum())
    return max(0, int(table.ints("allocated")[at]) - known)
