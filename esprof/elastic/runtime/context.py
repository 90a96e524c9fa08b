"""What belongs to one EST and moves with it, and how it moves."""

import json
from dataclasses import dataclass, field

import torch
from torch import Tensor

from esprof.core.assignment import Assignment, Est
from esprof.elastic.compress.codecs.codec import State
from esprof.elastic.data.loaders import EstLoader
from esprof.elastic.runtime.rng import RngState, seed_all
from esprof.elastic.runtime.transport import Transport

_RNG, _CODEC, _LOADER = "rng/", "codec/", "loader"


@dataclass
class EstContext:
    """The state of one EST between its turns: its random number generators, its codec's state by parameter name, and its
    loader, if it has one of its own."""

    rng: RngState
    codec: dict[str, State] = field(default_factory=dict)
    loader: EstLoader = field(default_factory=EstLoader)

    def tensors(self) -> dict[str, Tensor]:
        """The whole context as named tensors."""
        found = {f"{_RNG}{name}": tensor for name, tensor in self.rng.tensors().items()}
        for parameter, state in self.codec.items():
            found |= {f"{_CODEC}{parameter}/{name}": tensor for name, tensor in state.items()}
        loader = self.loader.state()
        return found if loader is None else found | {_LOADER: loader}

    @classmethod
    def new(cls, seed: int, device: torch.device) -> "EstContext":
        """The context of an EST before its first turn: with the generators as `seed_all(seed)` leaves them."""
        before = RngState.capture(device)
        seed_all(seed)
        context = cls(RngState.capture(device))
        before.restore(device)
        return context

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor], device: torch.device) -> "EstContext":
        """The context that `tensors` gave. Generators' tensors stay in host memory, those of the codec go to `device`."""
        rng = {name.removeprefix(_RNG): tensor for name, tensor in tensors.items() if name.startswith(_RNG)}
        context = cls(RngState.of_tensors(rng), loader=EstLoader(tensors.get(_LOADER)))
        for name, tensor in tensors.items():
            if name.startswith(_CODEC):
                parameter, _, key = name.removeprefix(_CODEC).rpartition("/")
                context.codec.setdefault(parameter, {})[key] = tensor.to(device)
        return context


def move(
    contexts: dict[Est, EstContext], before: Assignment, after: Assignment, transport: Transport, device: torch.device
) -> None:
    """Change `contexts` from the ESTs that this rank ran to those that it runs from now on. All ranks call this."""
    for est in range(before.n_est):
        source, target = before.owner(est), after.owner(est)
        if source != target:
            context = broadcast_context(contexts.pop(est, None), source, transport, device)
            if target == transport.rank:
                contexts[est] = context


def broadcast_context(
    context: EstContext | None, source: int, transport: Transport, device: torch.device
) -> EstContext:
    """The context of an EST that `source` has (None elsewhere), on every rank: a header of names and shapes, then bytes."""
    tensors = context.tensors() if context is not None else {}
    header = json.dumps(
        {name: [str(tensor.dtype)[6:], list(tensor.shape)] for name, tensor in tensors.items()}
    ).encode()
    length = torch.tensor([len(header)])
    transport.broadcast(length, source).wait()
    text = torch.frombuffer(bytearray(header.ljust(int(length))), dtype=torch.uint8)
    transport.broadcast(text, source).wait()
    found = {}
    for name, (dtype, shape) in json.loads(bytes(text.tolist())).items():
        tensor = (
            tensors[name].contiguous().cpu() if context is not None else torch.empty(shape, dtype=getattr(torch, dtype))
        )
        transport.broadcast(tensor, source).wait()
        found[name] = tensor
    return context or EstContext.of_tensors(found, device)
