"""The mean of all ESTs' gradients with the very bits of `DistributedDataParallel` on gloo with one process an EST."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store, _compute_bucket_assignment_by_size

from esprof.core.assignment import Assignment, Est
from esprof.elastic.compress.codecs.codec import Codec
from esprof.elastic.reduce.layout import Layout, Slot
from esprof.elastic.reduce.tree_reducer import CodecStates, pass_through
from esprof.elastic.runtime.transport import Transport, Work
from esprof.recorder.shared.torch_features import own_client


@dataclass
class VirtualRingReducer:
    """Each EST is a member of a gloo group of `n_est`, wherever it runs; gloo's ring then adds as it would for
    processes.

    The order in which gloo adds an element depends on its place in its bucket, so DDP's buckets are replayed: a single
    one in the first step, from then on those that it rebuilds in the order in which rank 0's gradients arrived. A
    restarted DDP has forgotten that order; here it is part of the state. A rank holds the gradients of all its ESTs
    until the step ends.
    """

    layout: Layout
    transport: Transport
    n_est: int
    store: Store
    """Store by which the members of the ring find each other."""
    bucket_caps: list[int]
    """Sizes in bytes: of the first bucket, and of each one after it."""
    find_unused: bool = False
    """Whether DDP would have `find_unused_parameters`, with which it has the same buckets from first to last."""
    bytes_sent: int = 0
    _arrival: list[int] = field(default_factory=list)
    """Parameters, numbered as registered, in the order in which EST 0's first step came to them; empty until then."""
    _connected: Assignment | None = None
    _free: Tensor | None = None

    def begin(self, assignment: Assignment, codec: Codec | None, states: CodecStates) -> None:
        self.bytes_sent = 0
        self._codec = codec
        self._states = states
        self._mine = assignment.ests[self.transport.rank]
        if assignment != self._connected:
            self._members = self._connect()
            self._connected = assignment
        self._buckets = self._buckets_of_ddp()
        self._passed: list[Slot] = []
        self._last: tuple[Est, Tensor] | None = None
        self._sums: dict[Est, list[_Sum]] = {}

    def buffer(self) -> Tensor:
        flat, self._free = self._free, None
        return self.layout.new() if flat is None else flat

    def sum_before(self, est: Est) -> Tensor | None:
        return None

    def fold(self, est: Est, flat: Tensor) -> None:
        if self._codec is not None:
            pass_through(self._codec, flat, self.layout.slots, self._states[est])
        self._sums[est] = [self._start(est, flat, slots) for slots in self._buckets]
        self._free = flat
        if est == 0:
            self._last_pass = self._passed[-len(self.layout.slots) :]

    def send_last(self, est: Est, flat: Tensor) -> None:
        self._last = est, flat

    def ready(self, slot: Slot) -> None:
        if not self._arrival and not self.find_unused:
            self._passed.append(slot)

    def finish(self) -> Tensor:
        if self._last is not None:
            self.fold(*self._last)
        for sums in self._sums.values():
            for started in sums:
                started.work.wait()
        self._free = result = self.buffer()
        if self._mine:
            for started in self._sums[self._mine[0]]:
                started.write(result)
        assert self._connected is not None
        if not all(self._connected.ests):
            self.transport.broadcast(result, self._connected.owner(0)).wait()
        if not self._arrival and not self.find_unused:
            self._arrival = self._share_arrival(self._connected.owner(0))
        return result

    def state(self) -> dict[str, Tensor]:
        return {"arrival": torch.tensor(self._arrival, dtype=torch.int64)}

    def load(self, state: dict[str, Tensor]) -> None:
        self._arrival = state["arrival"].tolist()

    def _connect(self) -> dict[Est, dist.ProcessGroupGloo]:
        """Make the ring's members for this rank's ESTs. Each waits for all others, and so has its own thread and
        client of the store."""
        number = torch.tensor([self.store.add("esprof/elastic/rings", 1) if self.transport.rank == 0 else 0])
        self.transport.broadcast(number, 0).wait()
        prefix = f"esprof/elastic/ring/{int(number)}"

        def member(est: Est) -> dist.ProcessGroupGloo:
            meeting = PrefixStore(prefix, own_client(self.store))
            return dist.ProcessGroupGloo(meeting, est, self.n_est, dist.default_pg_timeout)

        with ThreadPoolExecutor(self.n_est) as threads:
            return dict(zip(self._mine, threads.map(member, self._mine), strict=True))

    def _buckets_of_ddp(self) -> list[list[Slot]]:
        """One in its first step, later those of the order of arrival; with `find_unused` those of registration."""
        registered = list(self.layout.slots[::-1])
        if not self.find_unused and not self._arrival:
            return [registered]
        arrived = registered if self.find_unused else [registered[number] for number in self._arrival]
        parameters: list[Tensor] = [slot.parameter for slot in arrived]
        indices = list(range(len(arrived)))
        buckets, _ = _compute_bucket_assignment_by_size(parameters, self.bucket_caps, [False] * len(arrived), indices)
        return [[arrived[index] for index in bucket] for bucket in buckets]

    def _start(self, est: Est, flat: Tensor, slots: Sequence[Slot]) -> "_Sum":
        """Start a bucket's all-reduce as member `est`. DDP, too, divides first and adds then."""
        bucket = torch.cat([slot.of(flat) for slot in slots]).mul_(1 / self.n_est)
        if (est - 1) % self.n_est not in self._mine:
            self.bytes_sent += 2 * bucket.nbytes * (self.n_est - 1) // self.n_est
        work: Work = self._members[est].allreduce([bucket])  # type: ignore[attr-defined]
        return _Sum(work, bucket, slots)

    def _share_arrival(self, owner: int) -> list[int]:
        """The order in which gradients arrived in EST 0's last pass, told to all ranks: DDP goes by the pass in which
        it reduces."""
        numbers = {slot.name: number for number, slot in enumerate(self.layout.slots[::-1])}
        order = torch.zeros(len(numbers), dtype=torch.int64)
        if self.transport.rank == owner:
            order = torch.tensor([numbers[slot.name] for slot in self._last_pass])
        self.transport.broadcast(order, owner).wait()
        return order.tolist()


@dataclass
class _Sum:
    """A bucket of one EST whose sum over all ESTs is under way."""

    work: Work
    tensor: Tensor
    slots: Sequence[Slot]

    def write(self, flat: Tensor) -> None:
        """Put the sum where it belongs in a flat tensor."""
        sums = self.tensor.split([slot.parameter.numel() for slot in self.slots])
        for slot, total in zip(self.slots, sums, strict=True):
            slot.of(flat).copy_(total)
