"""Communication between the processes of a job."""

from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.futures import Future, collect_all

from esprof.core.types import Rank
from esprof.elastic.verify import collectives
from esprof.elastic.verify.rollcall import AloneRollCall, RollCall
from esprof.recorder.shared.torch_features import all_gather

_WAIT_AT_ONCE = timedelta(seconds=0.5)
"""Timeout of one wait for a collective, after which other ranks are checked."""


class Work(Protocol):
    """A running collective."""

    def wait(self) -> object: ...


class Transport(Protocol):
    """What the elastic runtime needs of a process group. All ranks make the same calls in the same order."""

    rank: int
    world: int

    def exchange(self, out: Tensor, out_sizes: list[int], send: Tensor, sizes: list[int]) -> Work:
        """Start to send `sizes[r]` elements of `send` (1-D) to each rank r, and to receive `out_sizes[r]` elements of
        `out` (1-D) from it, both in the ranks' order. A rank's own part of `out` may stay as it is: it has it in
        `send`."""

    def gather(self, out: Tensor, mine: Tensor) -> Work:
        """Start to gather `mine` (1-D, equally long on all ranks) of all ranks in `out`, in the ranks' order."""

    def share(self, whole: Tensor) -> Work:
        """Start to all-gather the shards of `whole` (1-D) in place: equal ones, in rank order, each written by its rank."""

    def broadcast(self, tensor: Tensor, source: int) -> Work: ...

    def add(self, tensor: Tensor) -> Work:
        """Start to sum `tensor` over all ranks, in place, in whatever order the transport adds."""


class GroupTransport:
    """A `torch.distributed` group. Tensors on a device that its backend does not serve, such as a GPU's with gloo or
    the host's with NCCL, make a detour: over the host, or over the GPU `gpu`. A wait over gloo ends with a
    MismatchError where `roll_call` finds that another rank will not come."""

    def __init__(
        self, group: dist.ProcessGroup | None = None, gpu: str = "cuda", roll_call: RollCall | None = None
    ) -> None:
        self._group = group
        self._roll_call = roll_call or AloneRollCall()
        self.rank = dist.get_rank(group)
        self.world = dist.get_world_size(group)
        config = str(dist.get_backend_config(group))
        self._detours = _detours(config, gpu)
        self._by_gloo = "cpu:gloo" in config.split(",")

    def exchange(self, out: Tensor, out_sizes: list[int], send: Tensor, sizes: list[int]) -> Work:
        if self.rank in (0, self.world - 1):  # Its own part is at an end, so that it can be left out.
            out, out_sizes = _without(self.rank, out, out_sizes)
            send, sizes = _without(self.rank, send, sizes)
        return self._all_to_all(out, out_sizes, send, sizes)

    def gather(self, out: Tensor, mine: Tensor) -> Work:
        return self._start(lambda there, here: all_gather(there, here, self._group), out, mine)

    def share(self, whole: Tensor) -> Work:
        shards = whole.chunk(self.world)
        if not self._by_gloo or not whole.is_cpu:
            return self.gather(whole, shards[self.rank])
        # Gloo gathers into a tensor of its own, and copies: these write to where it belongs.
        if self.world == 2:
            sizes = [0 if rank == self.rank else len(shard) for rank, shard in enumerate(shards)]
            return self._all_to_all(shards[1 - self.rank], sizes, shards[self.rank], sizes)
        return _Several([self.broadcast(shard, rank) for rank, shard in enumerate(shards)])

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        start = self._global(source)
        return self._start(
            lambda there, _: dist.broadcast(there, start, self._group, async_op=True), tensor, tensor, filled=True
        )

    def add(self, tensor: Tensor) -> Work:
        return self._start(
            lambda there, _: dist.all_reduce(there, group=self._group, async_op=True), tensor, tensor, filled=True
        )

    def _all_to_all(self, out: Tensor, out_sizes: list[int], send: Tensor, sizes: list[int]) -> Work:
        return self._start(
            lambda there, here: dist.all_to_all_single(there, here, out_sizes, sizes, self._group, async_op=True),
            out,
            send,
        )

    def _global(self, rank: int) -> int:
        return dist.get_global_rank(self._group, rank) if self._group is not None else rank

    def _start(self, call: Callable[[Tensor, Tensor], Any], out: Tensor, send: Tensor, *, filled: bool = False) -> Work:
        """Start `call(out, send)`; `filled` says that `out` also holds what is sent."""
        detour = self._detours.get(out.device.type)
        if detour is None:
            return self._watched(call, out, send)
        there = out.to(detour) if filled else torch.empty_like(out, device=detour)
        return _Staged(self._watched(call, there, there if filled else send.to(detour)), there, out)

    def _watched(self, call: Callable[[Tensor, Tensor], Any], out: Tensor, send: Tensor) -> Work:
        with collectives.own():
            work: Work = call(out, send)
        return _GuardedWork(work, self._roll_call) if out.device.type == "cpu" else work


def _without(rank: Rank, whole: Tensor, sizes: list[int]) -> tuple[Tensor, list[int]]:
    """`whole` and the sizes of its parts, without the part of the first or last `rank`."""
    rest = whole[sizes[0] :] if rank == 0 else whole[: whole.numel() - sizes[rank]]
    return rest, [0 if other == rank else size for other, size in enumerate(sizes)]


def _detours(config: str, gpu: str) -> dict[str, str]:
    """Device type -> the device over which its tensors travel, for those that the backends (`cpu:gloo,cuda:nccl`) do
    not serve."""
    backends = dict(entry.split(":") for entry in config.split(","))
    if backends.get("cuda") == "gloo":
        return {"cuda": "cpu"}
    return {} if "cpu" in backends else {"cpu": gpu}


class _GuardedWork:
    """A collective over gloo, whose wait ends early if another rank will not make the call."""

    def __init__(self, work: Any, roll_call: RollCall) -> None:
        self._work = work
        self._roll_call = roll_call
        self.get_future = work.get_future

    def wait(self) -> object:
        while True:
            try:
                return self._work.wait(_WAIT_AT_ONCE)
            except RuntimeError:
                if self._work.is_completed():  # It failed, or completed just after this wait timed out.
                    return self._ended()
            self._roll_call.check()

    def _ended(self) -> object:
        """The result of a completed collective."""
        try:
            return self._work.wait()
        except RuntimeError as error:
            self._roll_call.explain(error)
            raise


class _Several:
    """Running collectives that are waited for together."""

    def __init__(self, works: list[Any]) -> None:
        self._works = works

    def wait(self) -> None:
        for work in self._works:
            work.wait()

    def get_future(self) -> Future[Any]:
        return collect_all([work.get_future() for work in self._works])


class _Staged:
    """A collective on another device, whose result is copied to the tensor's own device by `wait`."""

    def __init__(self, work: Work, there: Tensor, out: Tensor) -> None:
        self._work = work
        self._there = there
        self._out = out

    def wait(self) -> object:
        self._work.wait()
        return self._out.copy_(self._there)


class Alone:
    """The transport of a job of one process."""

    rank = 0
    world = 1

    def exchange(self, out: Tensor, out_sizes: list[int], send: Tensor, sizes: list[int]) -> Work:
        out.copy_(send)
        return _DONE

    def gather(self, out: Tensor, mine: Tensor) -> Work:
        out.copy_(mine)
        return _DONE

    def share(self, whole: Tensor) -> Work:
        return _DONE

    def broadcast(self, tensor: Tensor, source: int) -> Work:
        return _DONE

    def add(self, tensor: Tensor) -> Work:
        return _DONE


def transport_for(model: nn.Module, roll_call: RollCall) -> Transport:
    """The transport between the processes of this job: torch.distributed's group of all, if it is initialized."""
    if not dist.is_available() or not dist.is_initialized():
        return Alone()
    gpus = [str(parameter.device) for parameter in model.parameters() if parameter.is_cuda]
    return GroupTransport(gpu=gpus[0] if gpus else "cuda", roll_call=roll_call)


class _CompletedWork:
    def wait(self) -> object:
        return None


_DONE = _CompletedWork()
