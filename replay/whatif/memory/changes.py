"""Changes of what a rank keeps in memory: other batches, activations that are computed again."""

from dataclasses import replace

import numpy as np

from esprof.replay.whatif.memory.blocks import MemoryBlocks, RankBlocks, Use, grown
from esprof.replay.whatif.memory.layers import LayerCalls
from esprof.replay.whatif.memory.passes import BackwardPasses

_LEAST_OUTPUT = 1 / 64
"""Size of a layer's output, relative to its largest block, above which the last block that is kept is its output: the
statistics of a normalisation are smaller."""


def with_batch(memory: RankBlocks, factor: float) -> RankBlocks:
    """The memory with `factor` times as many samples in each batch."""
    blocks = memory.blocks
    larger = np.where(blocks.grows, grown(blocks.bytes, factor, on_gpu=memory.on_gpu), blocks.bytes)
    return memory.with_blocks(replace(blocks, bytes=larger))


def with_accumulation(memory: RankBlocks, parts: int) -> RankBlocks:
    """The memory if each batch is divided into so many parts, whose gradients are added up.

    In all parts but the first, the gradients of those before are there from the begin, and each new one is added to them: it
    is there for a moment.
    """
    smaller = with_batch(memory, 1 / parts)
    blocks, passes = smaller.blocks, memory.passes
    of_pass = passes.of(blocks.begin_ns)
    is_new = (blocks.use == Use.GRADIENT) & (of_pass >= 0) & (blocks.end_ns > passes.end_ns[of_pass])
    gradients, number = blocks.where(is_new), of_pass[is_new]
    early = replace(gradients, begin_ns=_freed_ns(gradients, passes)[number])
    added = replace(gradients, end_ns=gradients.begin_ns + 1, use=np.full(len(gradients), Use.TEMPORARY, np.int8))
    return smaller.with_blocks(blocks.where(~is_new).joined(early).joined(added))


def _freed_ns(gradients: MemoryBlocks, passes: BackwardPasses) -> np.ndarray:
    """When the gradients of the pass before each are freed, ns, int64[P]; where they are not, the end of that pass."""
    freed = np.append(0, passes.end_ns[:-1])
    for number, (after, before) in enumerate(zip(freed.tolist(), passes.begin_ns.tolist(), strict=True)):
        inside = (gradients.end_ns > after) & (gradients.end_ns < before)
        freed[number] = gradients.end_ns[inside].max(initial=after)
    return freed


def with_sharded_optimizer(memory: RankBlocks, ranks: int) -> RankBlocks:
    """The memory if each of `ranks` holds an equal share of the states of optimizers (ZeRO, stage 1; SC 2020, section 5)."""
    return replace(memory, optimizer=-(-memory.optimizer // ranks))


def with_recomputation(memory: RankBlocks, layers: LayerCalls) -> RankBlocks:
    """The memory if each layer keeps its input alone, and is computed again before its backward pass.

    What the layer kept is freed at its end, and there again when its backward pass begins. With it comes, for a moment, what
    the layer takes at most beyond that while it is computed.
    """
    blocks = memory.blocks
    layer = layers.of(blocks.begin_ns)
    dropped = (layer >= 0) & (blocks.use == Use.ACTIVATION) & ~_outputs(blocks, layers, layer)
    again = blocks.where(dropped)
    number = layer[dropped]
    first = replace(again, end_ns=layers.end_ns[number])
    second = replace(again, begin_ns=np.minimum(layers.backward_ns[number], again.end_ns))
    stay = blocks.where(~dropped)
    return memory.with_blocks(stay.joined(first).joined(second).joined(_passing(blocks, layers, layer)))


def _outputs(blocks: MemoryBlocks, layers: LayerCalls, layer: np.ndarray) -> np.ndarray:
    """Mask of the blocks that are outputs of layers, which the next layer keeps as its input."""
    is_output = np.zeros(len(blocks), bool)
    for number in range(len(layers.end_ns)):
        left = np.flatnonzero((layer == number) & (blocks.end_ns > layers.end_ns[number]))
        if len(left):
            large = left[blocks.bytes[left] >= _LEAST_OUTPUT * blocks.bytes[left].max()]
            is_output[large[np.argmax(blocks.begin_ns[large])]] = True
    return is_output


def _passing(blocks: MemoryBlocks, layers: LayerCalls, layer: np.ndarray) -> MemoryBlocks:
    """A block for each layer: by how much it takes more while it is computed than it keeps."""
    sizes = np.zeros(len(layers.end_ns), np.int64)
    for number in range(len(sizes)):
        at_ns, total = blocks.where(layer == number).totals()
        total = total[at_ns <= layers.end_ns[number]]
        sizes[number] = max(0, int(total.max(initial=0) - (total[-1] if len(total) else 0)))
    begin = layers.backward_ns
    return MemoryBlocks(begin, begin + 1, sizes, np.full(len(sizes), Use.TEMPORARY, np.int8), np.ones(len(sizes), bool))
