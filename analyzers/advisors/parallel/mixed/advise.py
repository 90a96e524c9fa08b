"""Advice on pipelines that mix types of devices: the best plans found, and predictions of given ones."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from esprof.analyzers.advisors.parallel.mixed.pricing import MixedPricing, microbatches_of
from esprof.analyzers.advisors.parallel.mixed.profile import GivenPlan, MixedPlan, MixedProfile, MixedStage
from esprof.analyzers.advisors.parallel.mixed.search import Cut, MixedSearch
from esprof.analyzers.advisors.parallel.profile import Devices, DeviceType
from esprof.core.errors import EsprofError, MismatchError, UsageError
from esprof.core.types import Bytes

_US_PER_S = 1e6
_PLANS_PRICED = 20
_PLANS_SHOWN = 5

_NOT_MODELLED = (
    "several replicas of a stage on one server",
    "schedules other than 1F1B",
    "replicas of one type with unlike tensor degrees",
    "recomputation and sharded optimizer state",
    "memory of the framework",
)


class ReplicaGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Equal replicas of a stage."""

    device: DeviceType
    tensor: int
    """Devices that share each layer."""
    replicas: int
    memory_bytes: Bytes
    """Weights, gradients, optimizer state and activations of one device."""


class MixedStageCost(msgspec.Struct, frozen=True, kw_only=True):
    """What a stage costs."""

    first: int
    end: int
    """Layers `first` to before `end`."""
    groups: tuple[ReplicaGroup, ...]
    work_us: float
    """Forward and backward of a microbatch on the slowest replica."""
    receive_us: float
    """Transfer of a microbatch's input, one way."""
    reduce_us: float
    """All-reduce of the gradients, once a step."""


class PricedMixedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A plan under 1F1B."""

    plan: MixedPlan
    batch: int
    pipelines: int
    microbatches: int
    """Number of microbatches of each pipeline."""
    stages: tuple[MixedStageCost, ...]
    step_us: float
    """Replayed time of a step."""
    fits: bool
    """Whether all devices have the memory."""


class PredictedPlan(msgspec.Struct, frozen=True, kw_only=True):
    """A given plan."""

    name: str
    priced: PricedMixedPlan
    measured_us: float | None
    error_pct: float | None
    """Prediction less measurement, per cent of the measurement."""


class MixedAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The best plans and predictions of given ones, with all that is needed to compute them again."""

    schema: Literal["esprof.mixed-parallel/1"] = "esprof.mixed-parallel/1"
    model: str
    batch: int
    plans: tuple[PricedMixedPlan, ...]
    """The shortest step first."""
    given: tuple[PredictedPlan, ...]
    """The shortest predicted step first."""
    lower_bound_us: float
    """No plan with one tensor degree for each type has a shorter step."""
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...]
    profile: MixedProfile
    devices: Devices
    asked: tuple[GivenPlan, ...]


def advise_mixed(
    profile: MixedProfile,
    devices: Devices,
    batch: int,
    given: Sequence[GivenPlan] = (),
    warnings: Sequence[str] = (),
) -> MixedAdvice:
    """Find the best plan for steps of `batch` samples, and predict the given ones.

    The search is exact for its objective, ΣT + (m − 1) max T; replay then ranks its best plans. Raises UsageError if the
    profile has no type of the inventory or a given plan cannot be predicted, EsprofError if nothing fits.
    """
    devices = _known(profile, devices)
    # What other types take is not needed to compute the advice again.
    profile = msgspec.structs.replace(profile, times={kind: profile.times[kind] for kind in devices.devices})
    pricing = MixedPricing(profile, devices)
    search = MixedSearch(pricing, batch)
    plans = [priced(pricing, plan, batch) for plan in search.run()[:_PLANS_PRICED]]
    if not plans and not search.left_out:
        raise EsprofError(
            "the model does not fit into the memory of these devices in any plan, or the batch has no measured microbatch",
            remedy="Choose another --batch, or add devices, memory or `per_server` to the inventory.",
        )
    predicted = [predict(pricing, one, batch) for one in given]
    return MixedAdvice(
        model=profile.model,
        batch=batch,
        plans=tuple(sorted(plans, key=lambda one: one.step_us)[:_PLANS_SHOWN]),
        given=tuple(sorted(predicted, key=lambda one: one.priced.step_us)),
        lower_bound_us=round(search.lower_bound_us, 3),
        warnings=(*warnings, *_left_out(search.left_out)),
        not_modelled=_NOT_MODELLED,
        profile=profile,
        devices=devices,
        asked=tuple(given),
    )


def check_mixed(advice: MixedAdvice) -> None:
    """Compute advice again from the inputs in it. Raises MismatchError if it has other plans or predictions."""
    again = advise_mixed(advice.profile, advice.devices, advice.batch, advice.asked)
    for name in ("lower_bound_us", "plans", "given"):
        if getattr(again, name) != getattr(advice, name):
            raise MismatchError(f"computed again from the inputs in the file, {name} differs")


def predict(pricing: MixedPricing, given: GivenPlan, batch: int) -> PredictedPlan:
    """The step of a given plan, of its own batch or else of this one. Raises UsageError with its name."""
    kinds = {one.device for stage in given.plan.stages for one in stage.replicas}
    if missing := sorted(kinds - set(pricing.devices.devices)):
        raise UsageError(f"{given.name} uses {missing[0]}, of which the inventory and the profile do not both have one")
    try:
        one = priced(pricing, given.plan, given.batch or batch)
    except UsageError as error:
        raise UsageError(f"{given.name}: {error.reason}", remedy=error.remedy) from error
    error_pct = None if given.measured_us is None else round(100 * (one.step_us / given.measured_us - 1), 3)
    return PredictedPlan(name=given.name, priced=one, measured_us=given.measured_us, error_pct=error_pct)


def priced(pricing: MixedPricing, plan: MixedPlan, batch: int) -> PricedMixedPlan:
    """A plan with its replayed step and the costs of its stages."""
    microbatches = microbatches_of(plan, batch)
    stages = tuple(
        _cost(pricing, stage, plan.microbatch, min(microbatches, len(plan.stages) - place))
        for place, stage in enumerate(plan.stages)
    )
    groups = [group for stage in stages for group in stage.groups]
    return PricedMixedPlan(
        plan=plan,
        batch=batch,
        pipelines=plan.pipelines,
        microbatches=microbatches,
        stages=stages,
        step_us=pricing.step_us(plan, microbatches),
        fits=all(group.memory_bytes <= pricing.devices.memory_bytes(group.device) for group in groups),
    )


def _cost(pricing: MixedPricing, stage: MixedStage, microbatch: int, held: int) -> MixedStageCost:
    at = stage.first, stage.end
    return MixedStageCost(
        first=stage.first,
        end=stage.end,
        groups=tuple(
            ReplicaGroup(
                device=one.device,
                tensor=one.tensor,
                replicas=count,
                memory_bytes=round(float(pricing.memory_bytes(one, microbatch, held)[at])),
            )
            for one, count in Counter(stage.replicas).items()
        ),
        work_us=round(max(float(pricing.ranges(one, microbatch).work_us[at]) for one in set(stage.replicas)), 3),
        receive_us=round(float(pricing.receive_us(microbatch)[stage.first]), 3),
        reduce_us=round(float(pricing.reduce_us(stage.replicas, microbatch)[at]), 3),
    )


def _known(profile: MixedProfile, devices: Devices) -> Devices:
    """The devices of types that the profile has. Raises UsageError if there are none."""
    known = {kind: one for kind, one in devices.devices.items() if profile.times.get(kind)}
    if not known:
        raise UsageError(
            f"{profile.model} was measured on {', '.join(profile.times) or 'no type'}, "
            f"but the inventory has {', '.join(devices.devices)}"
        )
    return msgspec.structs.replace(devices, devices=known)


def _left_out(cuts: Sequence[Cut]) -> Iterator[str]:
    """What a search that would take too long could have found."""
    if cuts:
        what = ", ".join(f"{count} replicas of {kind.tensor} {kind.device}" for kind, count in cuts[0].units.items())
        yield (
            f"not searched, as it would take too long: {len(cuts)} ways to use the devices, such as {cuts[0].pipelines} "
            f"pipelines of {what}. Their plans take at least {cuts[0].bound_us / _US_PER_S:.3g} s"
        )
