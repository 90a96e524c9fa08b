"""The state of a job at a step boundary as named tensors: `shared/…`, the same on all ranks, and `est/<id>/…` per EST."""

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from esprof.core import readable
from esprof.core.assignment import Est
from esprof.core.errors import MismatchError
from esprof.core.types import Rank
from esprof.elastic.checkpoint import extra
from esprof.elastic.checkpoint.pack import pack, unpack
from esprof.elastic.compress.ests import EstGuard
from esprof.elastic.reach import saved
from esprof.elastic.runtime.agree import gather_values
from esprof.elastic.runtime.context import EstContext
from esprof.elastic.runtime.training import TrainingState
from esprof.elastic.runtime.transport import Transport
from esprof.elastic.verify.content import as_numpy

NamedTensors = dict[str, Tensor]

_OPTIMIZERS_REMEDY = "Make the optimizers of the checkpoint, or start a new job in another folder."

MODEL = "shared/model/"
_OPTIMIZER, _SCHEDULE, _REDUCER = "shared/optimizer/", "shared/schedule/", "shared/reducer/"
_STATE, _PLAN = "shared/state", "shared/plan"
"""Names of two tensors that hold JSON as bytes: the non-tensor state of optimizer, scheduler, scaler and `extra`; and
the job's next step, codecs and guard."""

_ATTRIBUTES = "attributes"
"""Another one: the attributes that the script has changed on this rank. A checkpoint has those that all ranks share, and so
it has of what `reach` has found."""


def capture(job: TrainingState, *, whole: bool = False) -> NamedTensors:
    """The state of the job on this rank, copied to host memory so that training can continue. If it is `whole`, it has also
    what the script reaches and has not changed."""
    job.attributes.note()
    job.reached.note()
    job.values.adopt(job.values_of_ests)
    packed, tensors = saved.capture(job.reached, job.values, whole=whole)
    found = _training(job) | {_ATTRIBUTES: _as_bytes(job.attributes.changed), saved.NAME: _as_bytes(packed)} | tensors
    guard = job.guard.saved() if job.guard is not None else None
    found[_PLAN] = _as_bytes({"next_step": job.next_step, "codecs": pack(job.codecs, "codecs", {}), "guard": guard})
    found |= {f"{_REDUCER}{name}": tensor for name, tensor in job.reducer.state().items()}
    for est, context in job.contexts.items():
        found |= {f"{est_prefix(est)}{name}": tensor for name, tensor in context.tensors().items()}
    return {name: tensor.detach().to("cpu", copy=True).contiguous() for name, tensor in found.items()}


def wanted(name: str, ests: Collection[Est]) -> bool:
    """Whether a rank that runs `ests` needs the tensor of this name."""
    return name.startswith("shared/") or any(name.startswith(est_prefix(est)) for est in ests)


@torch.no_grad()
def restore(job: TrainingState, path: Path, tensors: NamedTensors, *, rank: Rank, new_script: bool) -> list[str]:
    """Restore the job from `tensors`, all that are `wanted` of the checkpoint `path`. The model must be the same.
    Returns in what the script's reached state differs, a sentence each; raises MismatchError for that unless the script is
    meant to be another one (`new_script`), and if the checkpoint has other `extra` state."""
    state, plan = _of_bytes(tensors[_STATE]), _of_bytes(tensors[_PLAN])
    extra.check_names(job.model, job.own, state, path)
    for name, tensor in model_tensors(job.model).items():
        tensor.copy_(tensors[f"{MODEL}{name}"])
    if len(state["optimizers"]) != len(_optimizers(job)):
        found = f"{len(state['optimizers'])} optimizers there, and {len(_optimizers(job))} here"
        raise MismatchError(f"has {found}, those within others included", path=path, remedy=_OPTIMIZERS_REMEDY)
    with _shared_again(job):
        for optimizer, packed in zip(_optimizers(job), state["optimizers"], strict=True):
            _unpack_optimizer(job.model, optimizer, packed, tensors, path)
    for name, item in _scheduling(job).items():
        if name in state["schedule"]:
            item.load_state_dict(unpack(state["schedule"][name], tensors))
    job.attributes.restore(_of_bytes(tensors[f"shared/{_ATTRIBUTES}"]))
    reached = {name.removeprefix("shared/"): tensor for name, tensor in tensors.items()}
    packed = _of_bytes(reached[saved.NAME])
    differences = saved.restore(job.reached, packed, reached, path, rank=rank, new_script=new_script)
    extra.unpack_extra(job.model, job.own, state, tensors)
    job.next_step = plan["next_step"]
    job.codecs = unpack(plan["codecs"], {})
    job.guard = EstGuard.of_saved(plan["guard"]) if plan["guard"] is not None else None
    job.reducer.load(_within(_REDUCER, tensors))
    for est, fresh in job.contexts.items():
        context = EstContext.of_tensors(_within(est_prefix(est), tensors), job.device)
        if context.rng.cuda is None or fresh.rng.cuda is None:  # Saved on another type of device.
            context.rng.cuda = fresh.rng.cuda
        job.contexts[est] = context
    return differences


def training_tensors(job: TrainingState) -> NamedTensors:
    """The state that a step changes on all ranks, not copied: parameters, buffers, optimizer and `extra` state, and
    their non-tensor values as `state`. Excludes the state of ESTs, which affects only the next step."""
    return {name.removeprefix("shared/"): tensor for name, tensor in _training(job).items()}


def with_common_values(tensors: NamedTensors, transport: Transport) -> NamedTensors:
    """Captured tensors with the attributes and reached values that all ranks hold alike, instead of those of this rank: what
    a single rank does to evaluate or to log is its own. All ranks call this."""
    attributes, reached = _of_bytes(tensors[_ATTRIBUTES]), _of_bytes(tensors[saved.NAME])
    mine = [attributes, saved.hashes(reached, tensors)]
    ranks = gather_values(transport, mine)
    common, alike = (_common([rank[index] for rank in ranks]) for index in range(2))
    for name in saved.modules_of(reached) - alike.keys():
        raise MismatchError(f"{name} differs between ranks", remedy="Let the script do the same to it on all ranks.")
    kept = {name: value for name, value in reached.items() if name in alike}
    found = {name: tensor for name, tensor in tensors.items() if name.startswith(("shared/", "est/"))}
    found |= {f"shared/{name}": tensors[name] for name in saved.tensors_of(kept)}
    return found | {f"shared/{_ATTRIBUTES}": _as_bytes(common), f"shared/{saved.NAME}": _as_bytes(kept)}


def extra_digests(tensors: NamedTensors) -> dict[str, str]:
    """Hashes of the `extra` state in captured tensors, to check that ranks hold the same."""
    return extra.digests(_of_bytes(tensors[_STATE]), tensors)


def shared_digests(tensors: NamedTensors) -> dict[str, str]:
    """Hashes of the captured tensors that ranks hold in common, by name, to check that they hold the same."""
    return {
        name.removeprefix("shared/"): hashlib.sha256(as_numpy(tensor).data).hexdigest()[:16]
        for name, tensor in tensors.items()
        if name.startswith("shared/")
    }


def model_tensors(model: nn.Module) -> NamedTensors:
    """Parameters and buffers; shared tensors only once."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def est_prefix(est: Est) -> str:
    return f"est/{est}/"


def _training(job: TrainingState) -> NamedTensors:
    found = {f"{MODEL}{name}": tensor for name, tensor in model_tensors(job.model).items()}
    state = {
        "optimizers": [
            _pack_optimizer(job.model, optimizer, f"{_OPTIMIZER}{number}/" if number else _OPTIMIZER, found)
            for number, optimizer in enumerate(_optimizers(job))
        ],
        "schedule": {
            name: pack(item.state_dict(), f"{_SCHEDULE}{name}", found) for name, item in _scheduling(job).items()
        },
    }
    packed, more = extra.pack_extra(job.model, job.own)
    return found | more | {_STATE: _as_bytes(state | packed)}


def _optimizers(job: TrainingState) -> list[Optimizer]:
    """The optimizers, and those within them."""
    return [*job.optimizers, *job.reached.updates.optimizers]


@contextmanager
def _shared_again(job: TrainingState) -> Iterator[None]:
    """Let optimizers share state and groups as before the block, in which each gets its own: a wrapped one would not see
    the learning rate of the outer one."""
    optimizers = _optimizers(job)
    shared = [
        (inner, outer, name)
        for inner in job.reached.updates.optimizers
        for outer in optimizers[: optimizers.index(inner)]
        for name in ("state", "param_groups")
        if getattr(inner, name) is getattr(outer, name)
    ]
    yield
    for inner, outer, name in shared:
        setattr(inner, name, getattr(outer, name))


def _scheduling(job: TrainingState) -> dict[str, Any]:
    """The schedulers and the loss scaler, by name."""
    stateful: dict[str, Any] = {f"scheduler {number}": item for number, item in enumerate(job.schedulers)}
    return stateful | ({"scaler": job.scaler} if job.scaler.is_enabled() else {})


def _common(ranks: list[dict[str, Any]]) -> dict[str, Any]:
    """The entries that are the same on all ranks."""
    return {
        name: value
        for name, value in ranks[0].items()
        if all(name in other and repr(other[name]) == repr(value) for other in ranks)
    }


def _as_bytes(value: object) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(value).encode()), dtype=torch.uint8)


def _of_bytes(tensor: Tensor) -> Any:
    return json.loads(tensor.numpy().tobytes())


def _pack_optimizer(model: nn.Module, optimizer: Optimizer, prefix: str, tensors: NamedTensors) -> Any:
    """The optimizer's state by parameter name instead of index; its tensors are added to `tensors`."""
    whole = optimizer.state_dict()
    groups = _groups(model, optimizer)
    names = [name for group in groups for name in group]
    state = {names[index]: pack(item, f"{prefix}{names[index]}", tensors) for index, item in whole.pop("state").items()}
    return {"state": state, "groups": groups, "rest": pack(whole, f"{prefix}rest", tensors)}


def _unpack_optimizer(model: nn.Module, optimizer: Optimizer, packed: Any, tensors: NamedTensors, path: Path) -> None:
    _add_groups(model, optimizer, packed["groups"], path)
    indices = {name: index for index, name in enumerate(chain.from_iterable(_groups(model, optimizer)))}
    state = {indices[name]: unpack(item, tensors) for name, item in packed["state"].items()}
    optimizer.load_state_dict({"state": state, **unpack(packed["rest"], tensors)})


def _groups(model: nn.Module, optimizer: Optimizer) -> list[list[str]]:
    """Names of the parameters of each group, in the order in which the optimizer numbers them."""
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [[names[id(parameter)] for parameter in group["params"]] for group in optimizer.param_groups]


def _add_groups(model: nn.Module, optimizer: Optimizer, saved: list[list[str]], path: Path) -> None:
    """Add the groups that the script had added by `add_param_group` before it saved. Raises MismatchError if those before
    them have other parameters than now."""
    now = _groups(model, optimizer)
    if saved[: len(now)] != now:
        index = next(i for i, names in enumerate(now) if saved[i : i + 1] != [names])
        there = readable.listed(saved[index], most=3) if index < len(saved) else "absent"
        raise MismatchError(
            f"group {index} of {type(optimizer).__name__} is {there} there and {readable.listed(now[index], most=3)} here",
            path=path,
            remedy="Make the optimizer with the groups of the checkpoint; later ones are added when it is loaded.",
        )
    parameters = dict(model.named_parameters())
    for names in saved[len(now) :]:
        optimizer.add_param_group({"params": [parameters[name] for name in names]})


def _within(prefix: str, tensors: NamedTensors) -> NamedTensors:
    return {name.removeprefix(prefix): tensor for name, tensor in tensors.items() if name.startswith(prefix)}
