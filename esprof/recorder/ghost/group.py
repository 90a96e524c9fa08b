"""A process group of one real rank and replayed peers, which takes the place of gloo and NCCL."""

# mypy: disable-error-code="override, assignment"
# The stubs of PyTorch overload these methods, for calls that PyTorch itself does not make.

import functools
import sys
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import HashStore, _create_work_from_future  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import _get_process_group_name

from .completer import Completer
from .peers import Call, ReplayedPeers

BACKEND = "ghost"


def install(peers: ReplayedPeers, rank: int, world_size: int) -> None:
    """From now on, every process group of this process has `peers`, whichever backend the job asks for."""
    completer = Completer(peers)

    def create(options: Any, backend_options: Any) -> "GhostGroup":
        return GhostGroup(options.global_ranks_in_group or range(world_size), options.group_rank, completer)

    dist.Backend.register_backend(BACKEND, create, extended_api=True, devices=["cpu", "cuda"])
    init_process_group, new_group = dist.init_process_group, dist.new_group

    @functools.wraps(init_process_group)
    def init(*args: Any, **kwargs: Any) -> None:
        # There is nobody to meet: the peers run no code.
        init_process_group(BACKEND, store=HashStore(), rank=rank, world_size=world_size)

    @functools.wraps(new_group)
    def new(ranks: Any = None, *args: Any, **kwargs: Any) -> Any:
        return new_group(ranks, backend=BACKEND, group_desc=kwargs.get("group_desc"))

    @functools.wraps(dist.broadcast_object_list)
    def broadcast_object_list(*args: Any, **kwargs: Any) -> None:
        """The objects stay as they are: those of a peer are not known."""

    for original, ours in (
        (init_process_group, init),
        (new_group, new),
        (dist.broadcast_object_list, broadcast_object_list),
    ):
        _replace(original, ours)


def _replace(original: Callable[..., Any], ours: Callable[..., Any]) -> None:
    """Let all modules that have imported a function call ours."""
    name = original.__name__
    for module in list(sys.modules.values()):
        if getattr(module, "__dict__", {}).get(name) is original:
            setattr(module, name, ours)


class GhostGroup(dist.ProcessGroup):
    """Collectives end when the peers let them, and give this rank its own values: the sum is what the rank itself gave, and
    what it receives are copies of what it sends.

    PyTorch calls the methods by their names. Some have changed: both names are here.
    """

    def __init__(self, ranks: Sequence[int], rank: int, completer: Completer) -> None:
        super().__init__(rank, len(ranks))  # type: ignore[call-arg]
        self._ranks, self._completer = tuple(sorted(ranks)), completer

    def getBackendName(self) -> str:
        return BACKEND

    def getGroupName(self) -> str:
        return str(_get_process_group_name(self))

    group_name = property(getGroupName)

    def _begin(self, kind: str, sent: Sequence[Tensor], received: Sequence[Tensor]) -> Any:
        if any(tensor.is_cuda for tensor in (*sent, *received)):
            # A rank has launched when its GPU gets there. This was never tried on a GPU.
            torch.cuda.current_stream().synchronize()
        call = Call(kind, self._ranks, max(_bytes(sent), _bytes(received)))
        return _create_work_from_future(self._completer.begin(call, list(received)))

    def allreduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._begin("all_reduce", tensors, tensors)

    def allreduce_coalesced(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._begin("all_reduce", tensors, tensors)

    def reduce(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._begin("reduce", tensors, tensors)

    def broadcast(self, tensors: list[Tensor], opts: Any = None) -> Any:
        return self._begin("broadcast", tensors, tensors)

    def barrier(self, opts: Any = None) -> Any:
        return self._begin("barrier", (), ())

    def allgather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        for into, mine in zip(outputs, inputs, strict=True):
            for output in into:
                _copy(output, mine)
        return self._begin("all_gather", inputs, [output for into in outputs for output in into])

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        return self.all_gather_single_coalesced([output], [input])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, mine in zip(outputs, inputs, strict=True):
            for part in output.view(-1).chunk(self.size()):
                _copy(part, mine.reshape(-1))
        return self._begin("all_gather", inputs, outputs)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def reduce_scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        for output, parts in zip(outputs, inputs, strict=True):
            _copy(output, parts[self.rank()])
        return self._begin(_reduce_scatter(outputs), [part for parts in inputs for part in parts], outputs)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Any:
        return self.reduce_scatter_single_coalesced([output], [input])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, mine in zip(outputs, inputs, strict=True):
            _copy(output.view(-1), mine.reshape(-1).chunk(self.size())[self.rank()])
        return self._begin(_reduce_scatter(outputs), inputs, outputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def alltoall(self, outputs: list[Tensor], inputs: list[Tensor], opts: Any = None) -> Any:
        for output, mine in zip(outputs, inputs, strict=True):
            _copy(output, mine)
        return self._begin("all_to_all", inputs, outputs)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_sizes: Any = None, input_sizes: Any = None, opts: Any = None
    ) -> Any:
        return self.alltoall([output], [input])

    alltoall_base = all_to_all_single

    def gather(self, outputs: list[list[Tensor]], inputs: list[Tensor], opts: Any = None) -> Any:
        for output in (output for into in outputs for output in into):
            _copy(output, inputs[0])
        return self._begin("gather", inputs, [output for into in outputs for output in into])

    def scatter(self, outputs: list[Tensor], inputs: list[list[Tensor]], opts: Any = None) -> Any:
        for output, parts in zip(outputs, inputs, strict=False):  # Only the root has inputs.
            _copy(output, parts[self.rank()])
        return self._begin("scatter", [part for parts in inputs for part in parts], outputs)

    def send(self, tensors: list[Tensor], destination: int, tag: int = 0) -> Any:
        return self._begin("send", tensors, ())

    def recv(self, tensors: list[Tensor], source: int, tag: int = 0) -> Any:
        return self._begin("recv", (), tensors)

    def recv_anysource(self, tensors: list[Tensor], tag: int = 0) -> Any:
        return self._begin("recv", (), tensors)


def _reduce_scatter(tensors: Sequence[Tensor]) -> str:
    """The kind that a trace shows: gloo runs a reduce-scatter as an all-reduce."""
    return "reduce_scatter" if tensors[0].is_cuda else "all_reduce"


def _copy(output: Tensor, mine: Tensor) -> None:
    """Fill an output with own values; with zeros where its size is another one, as in an uneven all-to-all."""
    with torch.no_grad():
        output.detach().copy_(mine) if output.shape == mine.shape else output.detach().zero_()


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)
