"""What a checkpoint holds of a script's reached state: what has changed since the script made it, the same on all ranks."""

import json
from collections.abc import Mapping
from math import inf
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from esprof.core.errors import MismatchError
from esprof.core.types import Rank
from esprof.elastic.checkpoint.extra import extra_states, load_extra_states
from esprof.elastic.checkpoint.pack import pack, unpack
from esprof.elastic.reach.places import ABSENT
from esprof.elastic.reach.script import ReachedState
from esprof.elastic.reach.turns import EstValues
from esprof.elastic.reach.values import (
    PLAIN,
    can_move,
    can_move_with_est,
    copied,
    is_container,
    made,
    note,
    same,
    write_into,
)
from esprof.elastic.verify.content import content

NAME = "reached"
"""Name of the values in a checkpoint, as JSON; tensors are named `reached/…`."""

_OTHER_REMEDY = "Let the script make what it had, or, if the change is meant, pass Checkpoint(new_script=True)."


def capture(state: ReachedState, values: EstValues, *, whole: bool = False) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """(what has changed, as JSON by name; its tensors). Also has the other values that code reads, and hashes of the other
    modules. If `whole`, has everything but what ESTs have changed themselves."""
    tensors: dict[str, Tensor] = {}
    packed: dict[str, Any] = {}
    for name, copy in (_all if whole else _changed)(state, values).items():
        packed[name] = {"value": pack(copy, f"{NAME}/{name}", tensors)}
    for place in state.read_by_code():
        if place.name not in packed and values.base(place.name) is None and can_move_with_est(place.get()):
            packed[place.name] = {"read": _shown(place.get())}
    for name, module in state.modules.items():
        if whole or name in state.restored or state.noted(name) != state.first_of_modules[name]:
            packed[name] = {"module": pack(_held(module), f"{NAME}/{name}", tensors)}
        else:
            packed[name] = {"hash": content(_held(module))}
    return packed, tensors


@torch.no_grad()
def restore(
    state: ReachedState,
    packed: Mapping[str, Any],
    tensors: dict[str, Tensor],
    path: Path,
    *,
    rank: Rank,
    new_script: bool,
) -> list[str]:
    """Set the values of the checkpoint `path`. Returns how the script differs from that of the checkpoint, a sentence for
    each difference. Raises MismatchError at a difference, unless it is meant (`new_script`).

    Whole numbers, booleans and containers that code reads may differ: they often are the number of this process, or the
    options of a launch. What code reads is compared on rank 0 only.
    """
    modules, differences = state.modules, []
    for name, saved in packed.items():
        if "read" in saved and rank != 0:
            continue
        if fault := _fault(state, name, saved):
            if not new_script and not _is_of_launch(state, name, saved):
                raise MismatchError(fault, path=path, remedy=_OTHER_REMEDY)
            differences.append(fault)
        if fault or not ("value" in saved or "module" in saved):
            continue
        state.restored.add(name)
        if "module" in saved:
            _load(modules[name], unpack(saved["module"], tensors))
            continue
        copy, place = unpack(saved["value"], tensors), state.place(name)
        if place is not None and not write_into(place.get(), copy):
            place.set(made(copy))
    return differences


def _is_of_launch(state: ReachedState, name: str, saved: Mapping[str, Any]) -> bool:
    """Whether a value may differ from launch to launch."""
    place = state.place(name)
    if "read" not in saved or place is None:
        return "read" in saved
    return type(place.get()) in (bool, int, type(None)) or is_container(place.get())


def _fault(state: ReachedState, name: str, saved: Mapping[str, Any]) -> str:
    """Why an entry of a checkpoint does not fit the script; empty if it does."""
    place = state.place(name)
    if (place is None) if "value" in saved or "read" in saved else (name not in state.modules):
        return f"holds {name}, which the script does not reach now"
    if "read" in saved and place is not None and saved["read"] != (now := _shown(place.get())):
        return f"was trained with {name} = {saved['read']}, which is {now} now"
    if "hash" in saved and content(_held(state.modules[name])) != saved["hash"]:
        return f"was trained with other weights in {name}"
    return ""


def hashes(packed: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, str]:
    """A hash of each value and module in the result of `capture`, by name."""
    return {
        name: content([json.dumps(saved), [tensors[one] for one in tensors_of({name: saved})]])
        for name, saved in packed.items()
    }


def modules_of(packed: Mapping[str, Any]) -> set[str]:
    """Names of those that are modules."""
    return {name for name, saved in packed.items() if "module" in saved or "hash" in saved}


def tensors_of(packed: Mapping[str, Any]) -> list[str]:
    """Names of the tensors of these values and modules."""
    return sorted(_tensors_in(packed))


def _changed(state: ReachedState, values: EstValues) -> dict[str, Any]:
    """Copies of the values that have changed since the script made them, other than by EST steps."""
    found = {}
    of_turns, of_data = state.turns.by_name(), state.data.by_name()
    for name, place in state.places.items():
        base = values.base(name) if name in of_turns else None
        if base is not None:
            if base is not ABSENT and (name in values.set_by_script or name in state.restored):
                found[name] = base[1]
            continue
        value = place.get()
        has_changed = name in state.restored or not same(note(value), state.first.get(name))
        by_script = name in state.set_in_data or (has_changed and name not in of_data)
        if by_script and value is not ABSENT and can_move(value, inf):
            found[name] = copied(value)
    return found


def _tensors_in(packed: Any) -> set[str]:
    if isinstance(packed, list):
        return set().union(*map(_tensors_in, packed))
    if not isinstance(packed, dict):
        return set()
    if isinstance(name := packed.get("tensor"), str):
        return {name}
    return set().union(*map(_tensors_in, packed.values()))


def _all(state: ReachedState, values: EstValues) -> dict[str, Any]:
    found = {name: place.get() for name, place in state.places.items() if values.base(name) is None}
    return {name: copied(value) for name, value in found.items() if value is not ABSENT and can_move(value, inf)}


def _shown(value: object) -> str:
    """A plain value as text; any other value as its type and a hash of its content."""
    return repr(value) if type(value) in PLAIN else f"{type(value).__name__} {content(value)}"


def _held(module: nn.Module) -> dict[str, Any]:
    """All that a module holds: parameters, buffers and extra state."""
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    return {"tensors": tensors, "extra": extra_states(module)}


def _load(module: nn.Module, held: Mapping[str, Any]) -> None:
    for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
        if name in held["tensors"]:
            tensor.copy_(held["tensors"][name])
    load_extra_states(module, held["extra"])
