"""Readers of the files that planners for mixed GPUs publish (those of Sailor, SOSP 2025): times of layers
(`profiles_tmp.json`), sizes of layers (`llm_info.json`), and plans with their measured steps."""

from collections.abc import Collection, Container, Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any

import msgspec

from esprof.analyzers.advisors.parallel.mixed.profile import (
    GivenPlan,
    LayerSeconds,
    MixedPlan,
    MixedProfile,
    MixedStage,
    Replica,
    ShardSizes,
)
from esprof.analyzers.advisors.parallel.profile import DeviceType
from esprof.core.disk import read_given
from esprof.core.errors import InputError, UsageError
from esprof.core.types import NOT_DECODED

_US_PER_S = 1e6
_REMEDY = "docs/how-to/mixed-gpus.md shows the formats."
_WHAT = "a profile of layers"
_UNMEASURED_S = float(1 << 30)
"""What Sailor's profiler writes for a layer that ran out of memory."""


_Samples = Annotated[int, msgspec.Meta(ge=1)]


class _Sizes(msgspec.Struct):
    params_bytes: int
    act_output_bytes: int
    act_mem_bytes: int


class _Pipeline(msgspec.Struct):
    layers_per_stage: tuple[tuple[int, ...], ...]
    tmp_per_stage: tuple[tuple[tuple[tuple[tuple[str, int, str], ...], int], ...], ...]
    """By stage and replica: groups of (type, devices, zone), and the tensor degree."""


class _Plan(msgspec.Struct):
    pipeline_list: tuple[_Pipeline, ...]
    mbs: _Samples
    gbs: _Samples | None = None
    real: float = 0.0
    """Measured time of a step, s; 0 if it was not measured."""


_Times = dict[str, dict[str, dict[int, dict[int, dict[int, LayerSeconds]]]]]
"""By model, type, microbatch, tensor degree and layer."""
_AllSizes = dict[str, dict[int, dict[int, _Sizes]]]
"""By model, tensor degree and layer."""


def is_mixed(path: Path) -> bool:
    """Whether a file looks like one of these. False if it cannot be read as JSON, or is too large."""
    try:
        return _kind(msgspec.json.decode(read_given(path, _WHAT))) is not None
    except (InputError, *NOT_DECODED):
        return False


class MixedFiles:
    """What several files give: in any order, one of times, one of sizes, and any number of plans."""

    def __init__(self, paths: Sequence[Path]) -> None:
        self.warnings = list[str]()
        self._plans = dict[Path, _Plan]()
        self._found = dict[type, tuple[Path, Any]]()
        for path in paths:
            self._add(path)
        for kind, what in ((_Times, "times of layers"), (_AllSizes, "sizes of layers")):
            if kind not in self._found:
                raise UsageError(f"no file with {what} is given", remedy=_REMEDY)

    def _add(self, path: Path) -> None:
        raw = read_given(path, _WHAT)
        try:
            kind = _kind(msgspec.json.decode(raw))
            found = None if kind is None else msgspec.json.decode(raw, type=kind)
        except NOT_DECODED as error:
            raise InputError(str(error), path=path, remedy=_REMEDY) from error
        if kind is None:
            raise InputError("has neither times nor sizes of layers, and is no plan", path=path, remedy=_REMEDY)
        if isinstance(found, _Plan):
            self._plans[path] = found
        elif kind in self._found:
            raise UsageError(f"{self._found[kind][0]} and {path} both give {'times' if kind is _Times else 'sizes'}")
        else:
            self._found[kind] = path, found

    def profile(self, model: str | None, kinds: Collection[DeviceType]) -> MixedProfile:
        """The profile of `model`, or of the only one, on these types of devices. Tensor degrees without sizes are left out.
        Raises UsageError if the model or all types are not there, InputError if the profile is wrong."""
        (path, times), (sized, sizes) = self._found[_Times], self._found[_AllSizes]
        if model is None and len(times) > 1:
            raise UsageError(f"{path} has several models: {', '.join(times)}", remedy="Choose one with --model.")
        model = next(iter(times)) if model is None else model
        for where, models in ((path, times), (sized, sizes)):
            if model not in models:
                raise UsageError(f"{where} has no model {model}", remedy=f"It has {', '.join(models) or 'none'}.")
        if not times[model].keys() & set(kinds):
            raise UsageError(
                f"{model} was measured on {', '.join(times[model]) or 'no type'}, but the inventory has {', '.join(kinds)}"
            )
        if unsized := {
            f"{tensor} ({device})"
            for device, found in times[model].items()
            if device in kinds
            for by_tensor in found.values()
            for tensor in by_tensor.keys() - sizes[model].keys()
        }:
            self.warnings.append(
                f"no sizes are given for tensor degrees {', '.join(sorted(unsized))}: they are left out"
            )
        profile = MixedProfile(
            model=model,
            times={
                device: _measured(path, found, sizes[model])
                for device, found in times[model].items()
                if device in kinds
            },
            sizes={
                tensor: tuple(
                    ShardSizes(
                        parameter_bytes=one.params_bytes,
                        output_bytes=one.act_output_bytes,
                        kept_bytes=one.act_mem_bytes,
                    )
                    for one in _in_order(sized, layers)
                )
                for tensor, layers in sizes[model].items()
            },
        )
        if not profile.sizes or not profile.layers:
            raise InputError(f"has no sizes of layers of {model}", path=sized, remedy=_REMEDY)
        if fault := msgspec.structs.replace(profile, times={}).fault():
            raise InputError(fault, path=sized, remedy=_REMEDY)
        if fault := profile.fault():
            raise InputError(fault, path=path, remedy=_REMEDY)
        return profile

    def given(self, profile: MixedProfile) -> Iterator[GivenPlan]:
        """The plans. Raises InputError for one that does not have the layers of `profile`, or is of a form that cannot be
        predicted."""
        for path, plan in self._plans.items():
            if len(plan.pipeline_list) != 1:
                raise InputError(
                    f"has {len(plan.pipeline_list)} pipelines of their own shapes: only one is predicted", path=path
                )
            yield GivenPlan(
                name=path.name,
                plan=MixedPlan(plan.mbs, tuple(self._stages(path, plan.pipeline_list[0], profile))),
                batch=plan.gbs,
                measured_us=plan.real * _US_PER_S if plan.real > 0 else None,
            )

    def _stages(self, path: Path, pipeline: _Pipeline, profile: MixedProfile) -> Iterator[MixedStage]:
        """The stages of a plan. Some published ones name a layer twice and leave out another: what counts is how many."""
        listed = [layer for stage in pipeline.layers_per_stage for layer in stage]
        if len(listed) != profile.layers or not all(pipeline.layers_per_stage):
            raise InputError(f"has {len(listed)} layers in stages, but {profile.model} has {profile.layers}", path=path)
        if len(pipeline.tmp_per_stage) != len(pipeline.layers_per_stage):
            raise InputError(
                "has devices for another number of stages than it has layers for", path=path, remedy=_REMEDY
            )
        if listed != list(range(profile.layers)):
            self.warnings.append(
                f"{path.name} does not name each layer once, in order: its stages are read by their sizes"
            )
        if not pipeline.tmp_per_stage[0] or len({len(replicas) for replicas in pipeline.tmp_per_stage}) > 1:
            raise InputError(
                "has unlike numbers of replicas by stage, or none: such plans are not predicted", path=path
            )
        end = 0
        for layers, replicas in zip(pipeline.layers_per_stage, pipeline.tmp_per_stage, strict=True):
            first, end = end, end + len(layers)
            yield MixedStage(first, end, tuple(_replica(path, *one) for one in replicas))


def _kind(found: object) -> type | None:
    """What a file is, by its nesting: that of times or sizes, or a plan."""
    if isinstance(found, dict) and "pipeline_list" in found:
        return _Plan
    depth = 0
    while isinstance(found, dict) and found:
        found, depth = next(iter(found.values())), depth + 1
    if isinstance(found, list) and depth == 5:
        return _Times
    return _AllSizes if isinstance(found, int) and depth == 4 else None


def _measured(
    path: Path, found: dict[int, dict[int, dict[int, LayerSeconds]]], tensors: Container[int]
) -> dict[int, dict[int, tuple[LayerSeconds, ...]]]:
    """Times by microbatch and tensor degree, of these degrees only, without those where a layer ran out of memory."""
    kept = dict[int, dict[int, tuple[LayerSeconds, ...]]]()
    for microbatch, by_tensor in found.items():
        for tensor, layers in by_tensor.items():
            ordered = tuple(_in_order(path, layers))
            if tensor in tensors and all(time < _UNMEASURED_S for layer in ordered for time in layer):
                kept.setdefault(microbatch, {})[tensor] = ordered
    return kept


def _in_order(path: Path, layers: dict[int, Any]) -> list[Any]:
    """The layers 0, 1, … of a table."""
    if sorted(layers) != list(range(len(layers))):
        raise InputError("has layers that are not numbered 0, 1, 2, …", path=path, remedy=_REMEDY)
    return [layers[number] for number in range(len(layers))]


def _replica(path: Path, groups: tuple[tuple[str, int, str], ...], tensor: int) -> Replica:
    if len(groups) != 1:
        raise InputError("has a replica on several groups of devices: such plans are not predicted", path=path)
    return Replica(groups[0][0], tensor)
