"""The mean of all ESTs' gradients, with bits that depend on the number of ESTs alone."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import torch
from torch import Tensor

from esprof.core.assignment import Assignment, Est
from esprof.core.tree import Fold, Node, cover
from esprof.elastic.compress.codecs.codec import Codec, State
from esprof.elastic.reduce.layout import Bucket, Countdown, Layout, Slot
from esprof.elastic.reduce.stash import Held, Stash
from esprof.elastic.runtime.transport import Transport, Work

CodecStates = Mapping[Est, dict[str, State]]
"""EST -> name of a parameter -> what the codec keeps for them."""

_BUCKETS_AHEAD = 1
"""Buckets that are under way when the one before them is folded and shared: so much later may another rank be without
making this one wait, and so many more buckets need room to arrive."""

_ADDED_AT_ONCE = 1 << 16
"""Elements of a mean that a CPU adds up and scales at once: its cache holds them, so that memory is read once."""


class Reducer(Protocol):
    """Takes the gradients of a rank's ESTs, one after the other, and gives back the mean over all ESTs of the job.

    A rank calls for each of its ESTs: `buffer`, then, once its gradient is in there, `fold`; for its last EST
    `send_last` before the last backward pass and `ready` as that finishes parameters; and `finish` in any case. A gradient
    may also be added to `sum_before`; this tensor then takes the place of the buffer.
    """

    bytes_sent: int
    """Bytes handed to the transport for other ranks since `begin`."""

    def begin(self, assignment: Assignment, codec: Codec | None, states: CodecStates) -> None: ...

    def buffer(self) -> Tensor:
        """A flat tensor for the gradient of the next EST."""

    def sum_before(self, est: Est) -> Tensor | None:
        """The sum of earlier gradients to which that of `est` is added next, if it may be added in place; else None."""

    def fold(self, est: Est, flat: Tensor) -> None: ...

    def send_last(self, est: Est, flat: Tensor) -> None: ...

    def ready(self, slot: Slot) -> None: ...

    def finish(self) -> Tensor:
        """The mean gradient of all ESTs, in a flat tensor of the layout; valid until the next `begin`."""

    def state(self) -> dict[str, Tensor]:
        """The reducer's state, on which the bits of later steps depend; the same on all ranks."""

    def load(self, state: dict[str, Tensor]) -> None: ...


def encoded(
    codec: Codec, flat: Tensor, slots: Sequence[Slot], states: dict[str, State]
) -> Iterator[tuple[Slot, Tensor]]:
    """The bytes of each parameter's gradient in `flat`, of an EST whose codec has these states."""
    for slot in slots:
        yield slot, codec.encode(slot.of(flat), states.setdefault(slot.name, {}))


def pass_through(codec: Codec, flat: Tensor, slots: Sequence[Slot], states: dict[str, State]) -> None:
    """Replace gradients in `flat` by what their encoded bytes decode to."""
    for slot, wire in encoded(codec, flat, slots, states):
        codec.decode(wire, slot.of(flat))


def add(left: Tensor, right: Tensor) -> Tensor:
    """The sum of two tensors, in the memory of the right one: the left one is older, and may have been in the stash."""
    return right.add_(left)


@dataclass
class _Last:
    """The last EST of this rank, whose buckets are sent as they become ready."""

    est: Est
    node: Node
    """The EST, or the sum to which its gradient is added in place."""
    flat: Tensor


@dataclass
class TreeReducer:
    """Adds in the order of `tree`.

    Without a codec, or where that takes fewer bytes, a rank folds what it can (`cover`) and sends these partial sums:
    each rank gets a shard of each bucket from all, folds it to the end, and all gather the shards. Aligned assignments
    move as many bytes as an all-reduce. Otherwise all ranks gather all ESTs' encoded gradients, and each folds them.
    Both give the same bits: a decoded gradient is the same everywhere, and partial sums are never encoded.

    Both collectives of a bucket overlap the last backward pass. Backends require the same order on all ranks, whatever
    the order of gradients: the exchange of a bucket, then the sharing of the previous one.
    """

    layout: Layout
    transport: Transport
    n_est: int
    stash: Stash | None = None
    bytes_sent: int = 0
    gathers: bool = False
    """Whether all ranks gather all ESTs' encoded gradients since `begin`."""
    _free: list[Tensor] = field(default_factory=list)
    _inboxes: list[Tensor] = field(default_factory=list)
    """Tensors in which a bucket's shards arrive, used again once they are folded: new memory has to be mapped."""

    def begin(self, assignment: Assignment, codec: Codec | None, states: CodecStates) -> None:
        self.bytes_sent = 0
        self._codec = codec
        self._states = states
        self._nodes = [cover(ests, self.n_est) for ests in assignment.ests]
        self._assignment = assignment
        self.gathers = codec is not None and self._gathering_is_cheaper(codec)
        self._fold: Fold[Tensor | Held] = Fold(self.n_est, self._add)
        self._wires: list[Tensor] = []
        self._last: _Last | None = None
        self._result: Tensor | None = None
        self._sent: deque[_SentBucket] = deque()
        self._shared: list[Work] = []
        self._countdown = Countdown(self.layout)

    def buffer(self) -> Tensor:
        if self._free:
            return self._free.pop()
        emptied = self.stash.emptied() if self.stash else None
        return self.layout.new() if emptied is None else emptied

    def sum_before(self, est: Est) -> Tensor | None:
        if self._codec is not None or self._fold.parent_with(Node(est, 1)) is None:
            return None
        newest = self._fold.partials[-1][1]
        return newest if isinstance(newest, Tensor) else None

    def fold(self, est: Est, flat: Tensor) -> None:
        if self._codec is not None:
            self._encode(est, flat, self.layout.slots)
        if self.gathers:
            self._free.append(flat)
        else:
            self._fold.push(self._taken(est, flat), flat)
            self._stash_away()

    def send_last(self, est: Est, flat: Tensor) -> None:
        self._last = _Last(est, self._taken(est, flat), flat)

    def ready(self, slot: Slot) -> None:
        if self._last is None or self.gathers:
            return
        for bucket in self._countdown.arrived(slot):
            self._send(bucket)

    def finish(self) -> Tensor:
        if self.gathers:
            return self._gather_leaves()
        for bucket in self._countdown.rest():
            self._send(bucket)
        result = self._into()
        while self._sent:
            self._share_next()
        for work in self._shared:
            work.wait()
        self._recycle(result)
        return result

    def state(self) -> dict[str, Tensor]:
        return {}

    def load(self, state: dict[str, Tensor]) -> None: ...

    def _taken(self, est: Est, flat: Tensor) -> Node:
        """The node of which `flat` is the value. A sum to which the gradient of `est` is added is taken from the others."""
        leaf = Node(est, 1)
        parent = self._fold.parent_with(leaf)
        if parent is None or self._fold.partials[-1][1] is not flat:
            return leaf
        self._fold.partials.pop()
        return parent

    def _add(self, left: Tensor | Held, right: Tensor | Held) -> Tensor:
        assert isinstance(right, Tensor)  # Only what comes before the newest sum is stashed away.
        if isinstance(left, Held):
            held, left = left, left.fetch(slice(None), self.buffer())
            held.release()
        self._free.append(left)
        return add(left, right)

    def _stash_away(self) -> None:
        """Move the second newest sum to the host: the newest one is needed first."""
        if self.stash and len(self._fold.partials) > 1:
            node, partial = self._fold.partials[-2]
            if isinstance(partial, Tensor):
                self._fold.partials[-2] = node, self.stash.put(partial)

    def _segment(self, partial: Tensor | Held, bucket: Bucket) -> Tensor:
        """A bucket of a partial sum, on the device."""
        where = slice(bucket.start, bucket.stop)
        if isinstance(partial, Tensor):
            return partial[where]
        return partial.fetch(
            where, torch.empty(bucket.stop - bucket.start, dtype=self.layout.dtype, device=self.layout.device)
        )

    def _encode(self, est: Est, flat: Tensor, slots: tuple[Slot, ...]) -> None:
        """Pass a gradient through the codec: keep the bytes where leaves are gathered, else what they decode to."""
        assert self._codec is not None
        if self.gathers:
            self._wires += [wire for _, wire in encoded(self._codec, flat, slots, self._states[est])]
        else:
            pass_through(self._codec, flat, slots, self._states[est])

    def _send(self, bucket: Bucket) -> None:
        """Fold this bucket of the last EST into the partial sums, and start its exchange."""
        where = slice(bucket.start, bucket.stop)
        summands = [(node, self._segment(partial, bucket)) for node, partial in self._fold.partials]
        if self._last is not None:
            if self._codec is not None:
                self._encode(self._last.est, self._last.flat, bucket.slots)
            summands.append((self._last.node, self._last.flat[where]))
        if self.transport.world == 1:
            self._write_mean(dict(summands), self._into()[where])
            return
        fold: Fold[Tensor] = Fold(self.n_est, add)
        for node, summand in summands:
            fold.push(node, summand)
        self._sent.append(self._exchange(bucket, [partial for _, partial in fold.partials]))
        if len(self._sent) > _BUCKETS_AHEAD:
            self._share_next()

    def _exchange(self, bucket: Bucket, partials: list[Tensor]) -> "_SentBucket":
        rank, world, length = self.transport.rank, self.transport.world, bucket.stop - bucket.start
        shard = length // world
        send = _by_shard(partials, world) if partials else self.layout.new()[:0]
        sizes = [len(nodes) * shard for nodes in self._nodes]
        inbox = self._inbox(sum(sizes))
        work = self.transport.exchange(inbox[: sum(sizes)], sizes, send, [len(partials) * shard] * world)
        self.bytes_sent += (len(partials) * shard + shard) * (world - 1) * self.layout.dtype.itemsize
        return _SentBucket(bucket, work, inbox, send.view(world, len(partials), shard)[rank])

    def _inbox(self, numel: int) -> Tensor:
        """A tensor of at least `numel` elements."""
        inbox = self._inboxes.pop() if self._inboxes else None
        if inbox is None or inbox.numel() < numel:
            inbox = torch.empty(numel, dtype=self.layout.dtype, device=self.layout.device)
        return inbox

    def _share_next(self) -> None:
        """Fold this rank's shard of the oldest bucket under way to the end, and start to share it."""
        sent = self._sent.popleft()
        sent.work.wait()
        rank, nodes = self.transport.rank, [node for of_rank in self._nodes for node in of_rank]
        whole = self._into()[sent.bucket.start : sent.bucket.stop]
        mine = whole.view(self.transport.world, -1)[rank]
        arrived = sent.inbox[: len(nodes) * len(mine)].view(len(nodes), -1)
        sums = dict(zip(nodes, arrived, strict=True)) | dict(zip(self._nodes[rank], sent.own, strict=True))
        self._write_mean(sums, mine)
        self._inboxes.append(sent.inbox)
        self._shared.append(self.transport.share(whole))

    def _write_mean(self, sums: Mapping[Node, Tensor], mean: Tensor) -> None:
        """Add up the sums that all ESTs are in, and write the mean. It may be in the memory of one of them."""
        at_once = _ADDED_AT_ONCE if mean.is_cpu else len(mean)
        for start in range(0, len(mean), at_once):
            part = slice(start, start + at_once)
            of_part, out = {node: one[part] for node, one in sums.items()}, mean[part]
            torch.mul(_value(Node(0, self.n_est), of_part, out), 1 / self.n_est, out=out)

    def _into(self) -> Tensor:
        """The tensor of the step's mean: that of the last EST, each bucket of which is sent before it is
        overwritten."""
        if self._result is None:
            self._result = self._last.flat if self._last else self.buffer()
        return self._result

    def _gather_leaves(self) -> Tensor:
        """Share all encoded gradients, and fold them here."""
        assert self._codec is not None
        if self._last is not None:
            self._encode(self._last.est, self._last.flat, self.layout.slots)
            self._free.append(self._last.flat)
        leaf = sum(self._codec.wire_bytes(slot.parameter.numel()) for slot in self.layout.slots)
        most = max(map(len, self._assignment.ests))
        mine = torch.zeros(most * leaf, dtype=torch.uint8, device=self.layout.device)
        if self._wires:
            torch.cat(self._wires, out=mine[: len(self._wires) // len(self.layout.slots) * leaf])
        everyone = torch.empty(self.transport.world * most * leaf, dtype=torch.uint8, device=self.layout.device)
        self.transport.gather(everyone, mine).wait()
        self.bytes_sent += most * leaf * (self.transport.world - 1)
        leaves = everyone.view(self.transport.world, most, leaf)
        positions = {est: (rank, at) for rank, ests in enumerate(self._assignment.ests) for at, est in enumerate(ests)}
        fold: Fold[Tensor] = Fold(self.n_est, self._add)
        for est in range(self.n_est):
            fold.push(Node(est, 1), self._decoded(leaves[positions[est]]))
        ((_, total),) = fold.partials
        self._free.append(total)
        return total.mul_(1 / self.n_est)

    def _decoded(self, wire: Tensor) -> Tensor:
        assert self._codec is not None
        flat, at = self.buffer(), 0
        for slot in self.layout.slots:
            size = self._codec.wire_bytes(slot.parameter.numel())
            self._codec.decode(wire[at : at + size], slot.of(flat))
            at += size
        return flat

    def _gathering_is_cheaper(self, codec: Codec) -> bool:
        """Whether gathering encoded gradients moves fewer bytes than exchanging partial sums, over all ranks."""
        world = self.transport.world
        leaf = sum(codec.wire_bytes(slot.parameter.numel()) for slot in self.layout.slots)
        gathered = world * max(map(len, self._assignment.ests)) * leaf
        partial = self.layout.numel * self.layout.dtype.itemsize / world
        return world > 1 and gathered < partial * (sum(map(len, self._nodes)) + world)

    def _recycle(self, result: Tensor) -> None:
        for _, partial in self._fold.partials:
            if isinstance(partial, Held):
                partial.release()
            else:
                self._free.append(partial)
        self._free.append(result)


@dataclass
class _SentBucket:
    """A bucket on its way, and where the shards of other ranks arrive that this rank has to fold."""

    bucket: Bucket
    work: Work
    inbox: Tensor
    own: Tensor
    """This rank's partial sums of its shard, a row each."""


def _value(node: Node, known: Mapping[Node, Tensor], out: Tensor | None = None) -> Tensor:
    """The value of a node: a known one, or the sum of its children, in `out` if that is given. That may be the memory of
    a known one: it is written last."""
    if node in known:
        return known[node]
    left, right = node.children
    return torch.add(_value(left, known), _value(right, known), out=out)


def _by_shard(partials: list[Tensor], world: int) -> Tensor:
    """All partials of shard 0, then all of shard 1, …; the tensor itself where there is one."""
    if len(partials) == 1:
        return partials[0]
    return torch.stack([partial.view(world, -1) for partial in partials], dim=1).view(-1)
