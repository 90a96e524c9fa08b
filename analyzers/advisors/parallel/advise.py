"""Advice on the split of a model: the best splits of the searches, priced by replay of their schedules."""

from collections.abc import Iterator, Sequence
from typing import Literal

import msgspec

from esprof.analyzers.advisors.parallel.equal import MAX_MICROBATCHES, equal_plans
from esprof.analyzers.advisors.parallel.model import ModelProblems, ParallelModel
from esprof.analyzers.advisors.parallel.partition import lower_bound_us, search
from esprof.analyzers.advisors.parallel.pricing import Candidate, ParallelPlan
from esprof.analyzers.advisors.parallel.problem import Problem
from esprof.analyzers.advisors.parallel.profile import Devices, LayerProfile
from esprof.analyzers.advisors.parallel.transformer import Transformer
from esprof.core.errors import EsprofError, MismatchError, UsageError

_PRICED = 6
"""Splits of each search whose schedules are replayed."""
_PLANS_SHOWN = 5
_MAX_TASKS = 500_000
"""Most passes of microbatches in all replayed graphs together: some ten seconds. The best split is always replayed."""

_US_PER_DAY = 86_400e6

_NOT_MODELLED = (
    "the time of the optimizer",
    "lower efficiency of smaller microbatches on each replica",
    "transfers that share a link with those of other stages",
)


class TransformerFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the description of a transformer says about the best plan."""

    parameters: int
    flops: int
    """Operations of a step, with those that the plan repeats."""
    tflops_per_device: float
    """Rate of these operations on each of the plan's devices, 10^12 a second."""
    training_days: float | None
    """Time to train on all tokens; None if their number is not given."""


class ParallelAdvice(msgspec.Struct, frozen=True, kw_only=True):
    """The best splits of a model over devices, with all that is needed to compute them again."""

    schema: Literal["esprof.parallel/1"] = "esprof.parallel/1"
    batch: int
    plans: tuple[ParallelPlan, ...]
    """The shortest step first."""
    one_stage: ParallelPlan | None
    """Data and tensor parallelism only, with their best numbers; None if the model does not fit."""
    lower_bound_us: float
    """No plan and no schedule on these devices has a shorter step."""
    facts: TransformerFacts | None
    """None without a description of a transformer."""
    warnings: tuple[str, ...]
    not_modelled: tuple[str, ...]
    model: ParallelModel
    devices: Devices


def advise_parallel(model: LayerProfile | ParallelModel, devices: Devices, batch: int) -> ParallelAdvice:
    """Advise how to split the model over the devices, for steps of `batch` samples.

    Two searches find candidates: of measured profiles, all splits (`partition`), and of these and of the computed ones, all
    plans of equal stages (`equal`). Both are exact for their objectives; replay of several schedules then ranks the best
    few. Raises UsageError if the batch is no multiple of a microbatch or a layer has no time on a type of device,
    EsprofError if the model does not fit.
    """
    if isinstance(model, LayerProfile):
        model = ParallelModel(measured=(model,))
    problems = ModelProblems(model, devices, batch)
    measured, computed = (list(_usable(some, batch)) for some in (problems.measured, problems.computed))
    usable = [*measured, *computed]
    bound_us = lower_bound_us(usable, devices.counts, batch)
    unlike, refused = _unlike_splits(measured)
    equal = [Candidate(one.step_us, one.problem, one.split, one.chunks) for one in equal_plans(usable, batch, _PRICED)]
    plans, left_out = _priced([*unlike[:_PRICED], *equal[:_PRICED]], bound_us)
    alone = [one for some in (unlike, equal) for one in [one for one in some if len(one.split) == 1][:1]]
    one_stage = _ranked([plan for one in alone for plan in one.plans(bound_us)])
    ranked = _ranked([*plans, *one_stage])
    if not ranked:
        raise EsprofError(
            "the model does not fit into the memory of these devices in any split",
            remedy="Add devices or memory to the inventory, or profile a smaller microbatch.",
        )
    return ParallelAdvice(
        batch=batch,
        plans=tuple(ranked[:_PLANS_SHOWN]),
        one_stage=one_stage[0] if one_stage else None,
        lower_bound_us=round(bound_us, 3),
        facts=None if model.transformer is None else _facts(model.transformer, ranked[0], batch),
        warnings=(*problems.warnings, *refused, *_warnings(usable, left_out)),
        not_modelled=_NOT_MODELLED,
        model=model,
        devices=devices,
    )


def check_parallel(advice: ParallelAdvice) -> None:
    """Compute advice again from the inputs in it. Raises MismatchError if it has other plans or another bound."""
    again = advise_parallel(advice.model, advice.devices, advice.batch)
    for name in ("lower_bound_us", "one_stage", "plans", "facts"):
        if getattr(again, name) != getattr(advice, name):
            raise MismatchError(f"computed again from the inputs in the file, {name} differs")


def _usable(problems: Sequence[Problem], batch: int) -> Iterator[Problem]:
    """The problems of whose microbatch the batch is a multiple. Raises UsageError if there is none, or one has too many
    microbatches."""
    fitting = [one for one in problems if batch % one.microbatch == 0]
    if problems and (not fitting or batch < 1):
        sizes = sorted({one.microbatch for one in problems})
        raise UsageError(
            f"a batch of {batch} is not a multiple of the profile's microbatch of {' or '.join(map(str, sizes))}",
            remedy="Choose another --batch, or profile the layers with another microbatch.",
        )
    for one in fitting:
        if (count := batch // one.microbatch) > MAX_MICROBATCHES:
            raise UsageError(
                f"a batch of {batch} has {count:,} microbatches: at most {MAX_MICROBATCHES:,} are allowed",
                remedy="Choose a smaller --batch, or profile the layers with a larger microbatch.",
            )
    yield from fitting


def _unlike_splits(problems: Sequence[Problem]) -> tuple[list[Candidate], list[str]]:
    """The splits into stages of any sizes, the best by their objective first, and why there are none of a problem."""
    found, refused = list[Candidate](), list[str]()
    for problem in problems:
        try:
            found += [Candidate(problem.bound_us(split), problem, split) for split in search(problem)]
        except UsageError as error:
            refused.append(f"only plans of equal stages were searched: {error.reason}")
    return sorted(found, key=_objective), list(dict.fromkeys(refused))


def _priced(candidates: Sequence[Candidate], bound_us: float) -> tuple[list[ParallelPlan], int]:
    """The replayed plans of candidates, and how many of these were left out since their graphs are too large."""
    tasks, left_out, plans = 0, 0, list[ParallelPlan]()
    for candidate in sorted(candidates, key=_objective):
        tasks += candidate.tasks
        if tasks > _MAX_TASKS and plans:
            left_out += 1
        else:
            plans += candidate.plans(bound_us)
    return plans, left_out


def _objective(candidate: Candidate) -> float:
    return candidate.objective_us


def _ranked(plans: Sequence[ParallelPlan]) -> list[ParallelPlan]:
    """Plans by their time. Of those that differ only in how replicas share a microbatch, one: both searches find it."""
    unlike = dict[tuple[object, ...], ParallelPlan]()
    for plan in sorted(plans, key=lambda plan: (plan.step_us, *plan.place)):
        # Their times differ by the rounding of passes to nanoseconds.
        unlike.setdefault((f"{plan.step_us:.6g}", *plan.shape), plan)
    return list(unlike.values())


def _facts(transformer: Transformer, best: ParallelPlan, batch: int) -> TransformerFacts:
    flops = transformer.flops(batch, best.recompute)
    devices = best.tensor * sum(stage.replicas for stage in best.stages) / best.chunks
    days = None
    if transformer.tokens is not None:
        days = round(transformer.tokens / (batch * transformer.sequence) * best.step_us / _US_PER_DAY, 3)
    return TransformerFacts(
        parameters=transformer.parameters,
        flops=flops,
        tflops_per_device=round(flops / devices / best.step_us / 1e6, 3),
        training_days=days,
    )


def _warnings(problems: Sequence[Problem], left_out: int) -> Iterator[str]:
    if any(one.weights_us is None for one in problems):
        yield "no zero-bubble schedule: the profile has no weights_us"
    if left_out:
        yield f"{left_out} of the best splits were not replayed: their graphs are too large"
