"""Exchanges that average an encoded gradient over the ranks: by all-reduce, all-gather, or all-to-all of shards.

An exchange is a generator: it starts a collective, yields it, and continues when it is done. Its caller decides which thread
or stream runs it. The mean overwrites the gradient, with the same bits on all ranks.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from esprof.core.errors import UsageError
from esprof.core.plan import Exchange
from esprof.elastic.compress.codecs.blocks import BLOCK, Quantised, Sign
from esprof.elastic.compress.codecs.codec import Codec, State, Summable
from esprof.elastic.compress.codecs.sparse import TopK
from esprof.elastic.runtime.transport import Transport, Work

Steps = Iterator[Work]


@dataclass
class Counted:
    """A transport that counts the bytes that it sends to other ranks."""

    inner: Transport
    sent: int = 0

    @property
    def world(self) -> int:
        return self.inner.world

    @property
    def rank(self) -> int:
        return self.inner.rank

    def add(self, tensor: Tensor) -> Work:
        # As a ring all-reduce: each rank sends 2 (n - 1) / n of the tensor.
        self.sent += 2 * tensor.nbytes * (self.world - 1) // self.world
        return self.inner.add(tensor)

    def gather(self, mine: Tensor) -> tuple[Tensor, Work]:
        """(output of all ranks' tensors in rank order, the running collective)."""
        self.sent += mine.nbytes * (self.world - 1)
        out = mine.new_empty(self.world * len(mine))
        return out, self.inner.gather(out, mine)

    def swap(self, shards: Tensor) -> tuple[Tensor, Work]:
        """(output of each rank's shard for this rank in rank order, the running collective). `shards` has one for each
        rank."""
        self.sent += shards.nbytes * (self.world - 1) // self.world
        out, sizes = torch.empty_like(shards), [len(shards) // self.world] * self.world
        out.view(self.world, -1)[self.rank] = shards.view(self.world, -1)[self.rank]  # The exchange may leave it out.
        return out, self.inner.exchange(out, sizes, shards, sizes)


@dataclass(frozen=True)
class Links:
    """The links of an exchange. Each is used by one thread alone, so that all ranks start its collectives in the same
    order."""

    first: Counted
    """Link of the first collective of an exchange."""
    later: Counted
    """Link of its later collectives."""


def exchange_for(codec: Codec, wanted: Exchange | None) -> Exchange:
    """The exchange for this codec: `wanted`, or by default the one with the fewest bytes for many ranks. Raises
    UsageError if the codec does not support `wanted`."""
    can: tuple[Exchange, ...]
    if isinstance(codec, Summable):
        can = ("all_reduce", "all_gather")
    elif isinstance(codec, TopK):
        can = ("all_gather", "all_to_all")
    elif isinstance(codec, Quantised | Sign):
        can = ("all_to_all", "all_gather")
    else:
        can = ("all_gather",)
    if wanted is not None and wanted not in can:
        raise UsageError(f"codec {codec.spec} does not support {wanted}; use {' or '.join(can)}")
    return wanted or can[0]


def reduced(exchange: Exchange, codec: Codec, gradient: Tensor, state: State, links: Links) -> Steps:
    """The exchange that replaces `gradient` (1-D) by the mean over all ranks."""
    if exchange == "all_reduce":
        assert isinstance(codec, Summable), "exchange_for lets no other through"
        return _summed(codec, gradient, state, links)
    steps: Callable[[Codec, Tensor, State, Links], Steps] = _gathered if exchange == "all_gather" else _by_shards
    return steps(codec, gradient, state, links)


def unsent(state: State, numel: int, link: Counted) -> Tensor | None:
    """The residual that this rank has to add to its next gradient of `numel` entries, exchanged over `link`, when
    `state` is dropped; None if there is none.

    The residual of the second encoding of this rank's shard is part of the mean, so it is multiplied by the number of ranks.
    """
    whole = state["residual"][:numel] if "residual" in state else None
    second = state.get("second")
    if second is None:
        return whole
    padded = second.new_zeros(link.world * len(second))
    padded[link.rank * len(second) : (link.rank + 1) * len(second)] = second * link.world
    return padded[:numel] if whole is None else whole + padded[:numel]


def _summed(codec: Summable, gradient: Tensor, state: State, links: Links) -> Steps:
    link = links.first
    for tensor in codec.reduce(gradient, state, link.world):
        yield link.add(tensor)
        link = links.later


def _gathered(codec: Codec, gradient: Tensor, state: State, links: Links) -> Steps:
    wires, work = links.first.gather(codec.encode(gradient, state))
    yield work
    _decode_mean(codec, wires, links.first.world, gradient)


def _by_shards(codec: Codec, gradient: Tensor, state: State, links: Links) -> Steps:
    """Each rank receives its shard from all, and gathers the encoded mean. Has a residual for the second encoding, too."""
    world, rank = links.first.world, links.first.rank
    shard = shard_size(len(gradient), world)
    whole = gradient.new_zeros(world * shard)
    whole[: len(gradient)] = gradient
    states = _residuals_of_shards(codec, state, whole, shard)
    wires = [codec.encode(one, residuals) for one, residuals in zip(whole.split(shard), states, strict=True)]
    received, work = links.first.swap(torch.cat(wires))
    yield work
    mean = whole[rank * shard : (rank + 1) * shard]
    _decode_mean(codec, received, world, mean)
    own = {"residual": state["second"]} if "second" in state else {}
    shared, work = links.later.gather(codec.encode(mean, own))
    if "residual" in own:
        state["second"] = own["residual"]
    yield work
    for wire, one in zip(shared.view(world, -1), whole.split(shard), strict=True):
        codec.decode(wire, one)
    gradient.copy_(whole[: len(gradient)])


def shard_size(numel: int, world: int) -> int:
    """Entries of each rank's shard: a multiple of the blocks that share a scale."""
    return -(-numel // (world * BLOCK)) * BLOCK


def _residuals_of_shards(codec: Codec, state: State, whole: Tensor, shard: int) -> list[State]:
    """The codec's state for each shard: views of one residual, so that another exchange can continue with it."""
    if not codec.has_state:
        return [{} for _ in range(len(whole) // shard)]
    if "residual" not in state:
        state["residual"] = torch.zeros_like(whole)
    elif len(state["residual"]) < len(whole):
        missing = len(whole) - len(state["residual"])
        state["residual"] = torch.nn.functional.pad(state["residual"], (0, missing))
    return [{"residual": one} for one in state["residual"].split(shard)]


def _decode_mean(codec: Codec, wires: Tensor, world: int, out: Tensor) -> None:
    """Write the mean of `world` decoded wires of equal length to `out`, added in rank order."""
    decoded = torch.empty_like(out)
    for rank, wire in enumerate(wires.view(world, -1)):
        codec.decode(wire, decoded if rank else out)
        if rank:
            out.add_(decoded)
    out.mul_(1 / world)
