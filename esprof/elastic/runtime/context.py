"""The state of one EST, and how it moves between ranks."""

import json
from dataclasses import dataclass, field

import torch
from torch import Tensor

from esprof.core.assignment import Assignment, Est
from esprof.elastic.checkpoint.pack import pack, unpack
from esprof.elastic.compress.codecs.codec import State
from esprof.elastic.data.loaders import EstLoader
from esprof.elastic.reach.turns import Own
from esprof.elastic.runtime.rng import RngState, seed_all
from esprof.elastic.runtime.transport import Transport

_RNG, _CODEC, _LOADER, _VALUES = "rng/", "codec/", "loader", "values"


@dataclass
class EstContext:
    """The state of one EST between its EST steps: its random number generators, the codec state by parameter name, its own
    loader, if it has one, and the values that it has changed in attributes, closures and globals."""

    rng: RngState
    codec: dict[str, State] = field(default_factory=dict)
    loader: EstLoader = field(default_factory=EstLoader)
    values: Own = field(default_factory=dict)

    def tensors(self) -> dict[str, Tensor]:
        """The whole context as named tensors."""
        found = {f"{_RNG}{name}": tensor for name, tensor in self.rng.tensors().items()}
        for parameter, state in self.codec.items():
            found |= {f"{_CODEC}{parameter}/{name}": tensor for name, tensor in state.items()}
        if self.values:
            packed = pack(self.values, f"{_VALUES}/", found)
            found[_VALUES] = torch.frombuffer(bytearray(json.dumps(packed).encode()), dtype=torch.uint8)
        loader = self.loader.state()
        return found if loader is None else found | {_LOADER: loader}

    @classmethod
    def new(cls, seed: int, device: torch.device) -> "EstContext":
        """The context of an EST before its first step, with generators seeded by `seed_all(seed)`."""
        before = RngState.capture(device)
        seed_all(seed)
        context = cls(RngState.capture(device))
        before.restore(device)
        return context

    @classmethod
    def of_tensors(cls, tensors: dict[str, Tensor], device: torch.device) -> "EstContext":
        """The context from the result of `tensors()`. Generator states stay in host memory, codec states are moved to
        `device`."""
        rng = {name.removeprefix(_RNG): tensor for name, tensor in tensors.items() if name.startswith(_RNG)}
        values = unpack(json.loads(tensors[_VALUES].numpy().tobytes()), tensors) if _VALUES in tensors else {}
        context = cls(RngState.of_tensors(rng), loader=EstLoader(tensors.get(_LOADER)), values=values)
        for name, tensor in tensors.items():
            if name.startswith(_CODEC):
                parameter, _, key = name.removeprefix(_CODEC).rpartition("/")
                context.codec.setdefault(parameter, {})[key] = tensor.to(device)
        return context


def move(
    contexts: dict[Est, EstContext], before: Assignment, after: Assignment, transport: Transport, device: torch.device
) -> None:
    """Update `contexts` from the ESTs of this rank in `before` to those in `after`. All ranks call this."""
    for est in range(before.n_est):
        source, target = before.owner(est), after.owner(est)
        if source != target:
            context = broadcast_context(contexts.pop(est, None), source, transport, device)
            if target == transport.rank:
                contexts[est] = context


def broadcast_context(
    context: EstContext | None, source: int, transport: Transport, device: torch.device
) -> EstContext:
    """Broadcast the context of an EST from `source` (None elsewhere): a header of names and shapes, then the
    tensors."""
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
