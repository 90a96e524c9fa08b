"""How to cut MIG-capable GPUs so that the fewest serve all jobs (the problem of MIG-serving, arXiv 2109.11067, exactly)."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import ceil
from typing import Literal

import msgspec
import numpy as np
from scipy.sparse import csr_array

from esprof.analyzers.advisors.cluster.mig import Cut, cuts, largest_cuts, profiles
from esprof.analyzers.advisors.cluster.mix import DeviceType, JobId
from esprof.analyzers.advisors.cluster.program import Infeasible, Program, bound_in_integers, solve_integers
from esprof.analyzers.advisors.cluster.questions.answer import (
    CheckedAnswer,
    ClusterAnswer,
    NamedJob,
    OnDevices,
    verified,
)
from esprof.analyzers.advisors.job.growth import Model
from esprof.core.errors import MismatchError

_MAX_SHORT_SHARE = 1e-9
"""Rounding of a sum of throughputs, relative to the demand."""

_NOT_MODELLED = (
    "the change from the present slices, which must be drained first",
    "jobs on several slices at once: each instance runs on one",
    "slices whose throughput depends on what runs on the same GPU",
)

SliceName = str
"""A type of device, or a slice of one, such as `a100/2g.20gb`."""


class ServedJob(NamedJob, frozen=True, kw_only=True):
    """A job of independent instances, each on one slice or device."""

    demand_per_s: float
    """What all instances together must serve, in requests, samples or steps."""
    throughput_per_s: dict[SliceName, float]
    """What one instance serves. It cannot use what is missing, because of its memory or latency."""


class SlicesProblem(OnDevices, frozen=True, kw_only=True):
    """Jobs, and the GPUs that may be cut for them."""

    jobs: tuple[ServedJob, ...]

    def fault(self) -> str | None:
        if fault := self.fault_of_lists(self.jobs):
            return fault
        for job in self.jobs:
            numbers = (job.demand_per_s, *job.throughput_per_s.values())
            if not all(0 < number < float("inf") for number in numbers):
                return f"job {job.name} needs a demand and throughputs above 0"
        if fault := next((fault for kind in self.cluster if (fault := self._fault_of_type(kind))), None):
            return fault
        usable = {name for kind in self.cluster for name in self.names(kind)}
        if idle := [job.name for job in self.jobs if not usable & set(job.throughput_per_s)]:
            return f"job {idle[0]} has no throughput on any device or slice of the cluster"
        return None

    def _fault_of_type(self, kind: DeviceType) -> str | None:
        if not self.is_cut(kind):
            return None
        model, used = self.cluster[kind], self._used(kind)
        memory_gb = model.memory_gb if isinstance(model, Model) else None
        found = profiles(used, memory_gb)
        if not found:
            memory = f" with {memory_gb:g} GB" if memory_gb is not None else ""
            return f"no known MIG-capable GPU{memory} has the slices of {kind}: {', '.join(sorted(used))}"
        if len(found) > 1:
            sizes = " or ".join(every[-1].rpartition(".")[2] for every in found)
            return f"type {kind} may have {sizes}: its memory_gb is needed"
        return None

    def is_cut(self, kind: DeviceType) -> bool:
        """Whether devices of this type may be cut, and some job was measured on a slice of it."""
        model = self.cluster[kind]
        return isinstance(model, Model) and model.mig and bool(self._used(kind))

    def _used(self, kind: DeviceType) -> set[str]:
        return {
            profile
            for job in self.jobs
            for of, slash, profile in [name.partition("/") for name in job.throughput_per_s]
            if of == kind and slash
        }

    def names(self, kind: DeviceType) -> tuple[SliceName, ...]:
        """What a device of this type may be cut into, as the throughputs call it; only the type if it is not cut."""
        if not self.is_cut(kind):
            return (kind,)
        model = self.cluster[kind]
        (found,) = profiles(self._used(kind), model.memory_gb if isinstance(model, Model) else None)
        return tuple(f"{kind}/{profile}" for profile in found)


class CutDevices(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of one type that are cut alike."""

    device: DeviceType
    count: int
    slices: dict[SliceName, int]
    """Of each device; one of the type's own name if it is not cut."""


class SlicesGiven(msgspec.Struct, frozen=True, kw_only=True):
    """The slices of one job, each for one instance."""

    job: JobId
    slices: dict[SliceName, int]
    throughput_per_s: float


class Slicing(msgspec.Struct, frozen=True, kw_only=True):
    """How to cut devices, and who gets the slices."""

    devices: tuple[CutDevices, ...]
    jobs: tuple[SlicesGiven, ...]


class SlicesAnswer(ClusterAnswer, frozen=True, kw_only=True):
    """The cut of each device. The value is the number of devices."""

    objective: Literal["slices"] = "slices"
    decision: Slicing
    problem: SlicesProblem


@dataclass(frozen=True)
class _SlicesProgram:
    """The problem as an integer program: how many devices get each cut, and how many slices each job gets."""

    problem: SlicesProblem

    @cached_property
    def names(self) -> dict[SliceName, int]:
        """The row of each slice."""
        return {
            name: at for at, name in enumerate(n for kind in self.problem.cluster for n in self.problem.names(kind))
        }

    @cached_property
    def cuts(self) -> list[tuple[DeviceType, Cut]]:
        """The cuts of each type that are worth considering."""
        return [
            (kind, cut)
            for kind in self.problem.cluster
            for cut in (largest_cuts() if self.problem.is_cut(kind) else ((1,),))
        ]

    @cached_property
    def given(self) -> list[tuple[ServedJob, SliceName]]:
        return [(job, name) for job in self.problem.jobs for name in job.throughput_per_s if name in self.names]

    def program(self) -> Program:
        """Maximise the negative number of devices. The slices of jobs come last: a search split there ends sooner."""
        kinds = list(self.problem.cluster)
        many, width = len(self.cuts), len(self.cuts) + len(self.given)
        slices, demand = np.zeros((len(self.names), width)), np.zeros((len(self.problem.jobs), width))
        devices = np.zeros((len(kinds), width))
        for at, (kind, cut) in enumerate(self.cuts):
            devices[kinds.index(kind), at] = 1
            for name, count in zip(self.problem.names(kind), cut, strict=True):
                slices[self.names[name], at] = -count
        for at, (job, name) in enumerate(self.given, many):
            slices[self.names[name], at] = 1
            # An instance cannot serve more than all; in integers this cuts off nothing, and the bound becomes better.
            demand[self.problem.jobs.index(job), at] = -min(1.0, job.throughput_per_s[name] / job.demand_per_s)
        bounds = [*np.zeros(len(slices)), *-np.ones(len(demand)), *(self.problem.counts[kind] for kind in kinds)]
        gain = np.concatenate([-np.ones(many), np.zeros(len(self.given))])
        return Program(gain, csr_array(np.vstack([slices, demand, devices])), np.array(bounds, float))

    def decision(self, x: np.ndarray) -> Slicing:
        counts = x.astype(int).tolist()
        cut, given = counts[: len(self.cuts)], counts[len(self.cuts) :]
        return Slicing(
            devices=tuple(
                CutDevices(
                    device=kind,
                    count=count,
                    slices={name: n for name, n in zip(self.problem.names(kind), shape, strict=True) if n},
                )
                for (kind, shape), count in zip(self.cuts, cut, strict=True)
                if count
            ),
            jobs=tuple(self._given(job, given) for job in self.problem.jobs),
        )

    def _given(self, job: ServedJob, given: Sequence[int]) -> SlicesGiven:
        mine = {name: n for (of, name), n in zip(self.given, given, strict=True) if of is job and n}
        return SlicesGiven(job=job.name, slices=mine, throughput_per_s=_served(job, mine))


def cut_devices(problem: SlicesProblem) -> SlicesAnswer:
    """The cuts and slices with the fewest devices, exact (integer program). Raises Infeasible if all devices are too few."""
    posed = _SlicesProgram(problem)
    try:
        found = solve_integers(posed.program(), np.ones(len(posed.cuts) + len(posed.given), bool))
    except Infeasible as error:
        raise Infeasible(
            "the devices of the cluster cannot serve all jobs, however they are cut",
            remedy="Add devices to the inventory, or lower the demands.",
        ) from error
    decision = posed.decision(found.x)
    bound = -bound_in_integers(posed.program(), found.value)
    return SlicesAnswer(
        value=-found.value,
        unit="device" if found.value == -1 else "devices",
        bound=bound,
        baselines=dict(_whole(problem)),
        warnings=() if bound == -found.value else ("the search was too long to prove that fewer devices are too few",),
        not_modelled=_NOT_MODELLED,
        decision=decision,
        problem=problem,
    )


def check_slices(answer: SlicesAnswer) -> CheckedAnswer:
    """Verify by arithmetic that the cuts are possible and serve all jobs, and by the dual values of linear programs that no
    fewer devices do. Raises MismatchError."""
    problem = answer.problem
    left = dict.fromkeys(_SlicesProgram(problem).names, 0)
    used = dict.fromkeys(problem.cluster, 0)
    for one in answer.decision.devices:
        if one.device not in used or one.count < 1:
            raise MismatchError(f"the cluster has no {one.count} devices of type {one.device}")
        _refuse_impossible(problem, one)
        used[one.device] += one.count
        for name, count in one.slices.items():
            left[name] += count * one.count
    for kind, count in used.items():
        if count > problem.counts[kind]:
            raise MismatchError(f"the cuts need {count} devices of type {kind}, but there are {problem.counts[kind]}")
    given = {one.job: one.slices for one in answer.decision.jobs}
    if set(given) != {job.name for job in problem.jobs} or len(given) < len(answer.decision.jobs):
        raise MismatchError("other jobs get slices than those of the problem")
    for job in problem.jobs:
        mine = given[job.name]
        if not set(mine) <= set(job.throughput_per_s) & set(left) or min(mine.values(), default=1) < 1:
            raise MismatchError(f"job {job.name} gets slices on which it cannot run")
        if _served(job, mine) < job.demand_per_s * (1 - _MAX_SHORT_SHARE):
            raise MismatchError(f"job {job.name} serves {_served(job, mine):.10g} of {job.demand_per_s:.10g}")
        for name, count in mine.items():
            left[name] -= count
    if short := [name for name, count in left.items() if count < 0]:
        raise MismatchError(f"more slices {short[0]} are used than the devices are cut into")
    value = float(sum(used.values()))
    bound = -bound_in_integers(_SlicesProgram(problem).program(), -value)
    return verified(answer, value, bound, "by dual values of linear programs")


def _refuse_impossible(problem: SlicesProblem, one: CutDevices) -> None:
    """Raise MismatchError if a device cannot be cut in this way."""
    names = problem.names(one.device)
    counts = tuple(one.slices.get(name, 0) for name in names)
    possible = counts in cuts() if problem.is_cut(one.device) else counts == (1,)
    if not possible or not set(one.slices) <= set(names):
        raise MismatchError(f"a device of type {one.device} cannot be cut into {one.slices}")


def _served(job: ServedJob, slices: dict[SliceName, int]) -> float:
    return sum(job.throughput_per_s[name] * count for name, count in slices.items())


def _whole(problem: SlicesProblem) -> Iterator[tuple[str, float]]:
    """The number of devices if none is cut and jobs do not share them, as far as the cluster were large enough."""
    whole = {problem.names(kind)[-1] for kind in problem.cluster}
    best = [
        min(
            (ceil(job.demand_per_s / job.throughput_per_s[name]) for name in whole & set(job.throughput_per_s)),
            default=0,
        )
        for job in problem.jobs
    ]
    if all(best):
        yield "whole devices for each job", float(sum(best))
