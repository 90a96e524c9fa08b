"""How torch communicates: NCCL on a stream of each process group, gloo on threads of its own."""

import json
from dataclasses import dataclass, replace
from itertools import pairwise

from benchmarks.known.build import COMPUTE, US, Link, Thread
from benchmarks.known.program import JoinCollective, Kernel, Record, Wait

_DTYPES = {"BFloat16": ("bf16", 2), "Float": ("f32", 4)}


@dataclass(frozen=True)
class _Spelling:
    """Names of a collective in the dispatcher, `record_param_comms`, the annotation and NCCL, and its ratios of elements."""

    op: str
    described: str
    annotated: str
    kernel: str
    sent: int = 1
    """0: the input is one rank's share of the elements."""
    received: int = 1


_SPELLINGS = {
    "all_reduce": _Spelling("c10d::allreduce_", "allreduce", "nccl:all_reduce", "AllReduce_Sum_{dtype}_RING_LL"),
    "all_gather": _Spelling(
        "c10d::_allgather_base_", "_allgather_base", "nccl:_all_gather_base", "AllGather_RING_LL", sent=0
    ),
    "reduce_scatter": _Spelling(
        "c10d::_reduce_scatter_base_",
        "_reduce_scatter_base",
        "nccl:_reduce_scatter_base",
        "ReduceScatter_Sum_{dtype}_RING_LL",
        received=0,
    ),
    "all_to_all": _Spelling("c10d::alltoall_base_", "all_to_allv", "nccl:all_to_all", "SendRecv"),
    "broadcast": _Spelling("c10d::broadcast_", "broadcast", "nccl:broadcast", "Broadcast_RING_LL"),
}


@dataclass(frozen=True)
class Group:
    """A process group. `name` is torch's number of it, `stream` its NCCL stream on each of its ranks."""

    name: str
    what: str
    ranks: tuple[int, ...]
    stream: int
    link: Link
    dtype: str = "BFloat16"
    numbered: bool = True
    """Whether calls record their sequence number, as in torch 2.7 and later."""

    def start(self, thread: Thread, collective: str, nbytes: int, *, after: int = COMPUTE) -> int:
        """Launch a collective of `nbytes` after the current work of stream `after`; returns the event of its end."""
        spelling = _SPELLINGS[collective]
        with thread.op(spelling.op, before=4 * US):
            return self._launch(thread, self._kernel(thread, spelling, nbytes), spelling.annotated, after)

    def captured(self, thread: Thread, collective: str, nbytes: int) -> tuple[list[Record | Wait | Kernel], Wait]:
        """The commands of a collective within a CUDA graph, which records no arguments, and the wait for its end."""
        kernel = replace(self._kernel(thread, _SPELLINGS[collective], nbytes), args={})
        before, end = next(thread.rank.events), next(thread.rank.events)
        commands: list[Record | Wait | Kernel] = [
            Record(before, COMPUTE),
            Wait(self.stream, before),
            kernel,
            Record(end, self.stream),
        ]
        return commands, Wait(COMPUTE, end)

    def _kernel(self, thread: Thread, spelling: _Spelling, nbytes: int) -> Kernel:
        short, size = _DTYPES[self.dtype]
        elements = nbytes // size
        name = f"ncclDevKernel_{spelling.kernel.format(dtype=short)}(ncclDevKernelArgsStorage<4096ul>)"
        described = self._described(thread, "", spelling.described) | {
            "In msg nelems": elements if spelling.sent else elements // len(self.ranks),
            "Out msg nelems": elements if spelling.received else elements // len(self.ranks),
        }
        number = thread.rank.sequence[self.name]
        collective = thread.build.collective((self.name, number), self.ranks, name, self.link, nbytes)
        return Kernel(self.stream, name, -1, collective, "kernel", described)

    def send(self, thread: Thread, peer: int, nbytes: int) -> int:
        return self._pass_on(thread, "send", thread.rank.number, peer, nbytes)

    def receive(self, thread: Thread, peer: int, nbytes: int) -> int:
        return self._pass_on(thread, "recv", peer, thread.rank.number, nbytes)

    def _pass_on(self, thread: Thread, word: str, source: int, target: int, nbytes: int) -> int:
        """One end of a message, on the stream of the two ranks for messages in that direction."""
        way = f"{source}->{target}"
        elements = nbytes // _DTYPES[self.dtype][1]
        name = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
        described = self._described(thread, way, word) | {"In msg nelems": elements, "Out msg nelems": elements}
        # Torch counts ranks within the group here.
        peers = {"Src Rank": self.ranks.index(source)} if word == "recv" else {"Dst Rank": self.ranks.index(target)}
        number = thread.rank.sequence[self.name, way]
        key = (self.name, way, number)
        collective = thread.build.collective(key, (source, target), name, self.link, nbytes)
        stream = self.stream + 4 + 4 * self._ways.index((source, target))
        kernel = Kernel(stream, name, -1, collective, "kernel", described | peers)
        with thread.op(f"c10d::{word if word == 'send' else 'recv_'}", before=4 * US):
            return self._launch(thread, kernel, f"nccl:{word} {way}", COMPUTE)

    @property
    def _ways(self) -> list[tuple[int, int]]:
        ring = [*self.ranks, self.ranks[0]]
        forth = list(pairwise(ring))
        return [*forth, *((target, source) for source, target in forth)]

    def _described(self, thread: Thread, way: str, word: str) -> dict[str, object]:
        thread.rank.sequence[(self.name, way) if way else self.name] += 1
        seq = {"Seq": thread.rank.sequence[(self.name, way) if way else self.name]} if self.numbered else {}
        return {
            "Collective name": word,
            "dtype": self.dtype,
            "In split size": "[]",
            "Out split size": "[]",
            "Process Group Name": self.name,
            "Process Group Description": self.what,
            "Process Group Ranks": json.dumps(list(self.ranks)),
            "Group size": len(self.ranks),
            **seq,
        }

    def _launch(self, thread: Thread, kernel: Kernel, annotated: str, after: int) -> int:
        with thread.op("record_param_comms", 2 * US, args=kernel.args):
            if after != kernel.stream:
                thread.wait(thread.record(after), kernel.stream)
            with thread.annotation(annotated):
                thread.launch(kernel, "cudaLaunchKernelExC")
            return thread.record(kernel.stream)


@dataclass(frozen=True)
class Gloo:
    """A process group of CPUs, whose collectives run on its own threads (torch starts two)."""

    name: str
    ranks: tuple[int, ...]
    link: Link
    threads: int = 2

    def start(self, thread: Thread, nbytes: int) -> int:
        """Launch an all-reduce; returns the flag that is raised at its end."""
        number = thread.rank.sequence[self.name]
        thread.rank.sequence[self.name] += 1
        collective = thread.build.collective((self.name, number), self.ranks, "gloo:all_reduce", self.link, nbytes)
        worker = thread.rank.thread(f"gloo{number % self.threads}")
        with thread.op("c10d::allreduce_", before=10 * US, after=5 * US):
            worker.hold(thread.post())
        with worker.annotation("gloo:all_reduce"):
            worker.code.append(JoinCollective(collective))
        return worker.post()
