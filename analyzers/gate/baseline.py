"""Baselines for comparison with later runs: samples per step of one run or several, and the identity of these runs."""

from pathlib import Path

import msgspec
import numpy as np

from esprof.analyzers.gate.rules import MAX_RUNS
from esprof.analyzers.steps.job_steps import ComparedPhase, JobSteps
from esprof.core.errors import InputError, MismatchError
from esprof.core.types import NOT_DECODED, NS_PER_S, Rank
from esprof.run.run import Run

SCHEMA = "esprof.baseline/1"

SHOWN_PHASE: dict[ComparedPhase, str] = {
    "plain": "plain steps (no profiler)",
    "timed": "timed steps (under the profiler)",
}

_VERSIONS = ("python", "torch", "cuda", "cuda_runtime", "nccl")


class RunIdentity(msgspec.Struct, frozen=True, kw_only=True):
    """Properties that must be equal for two runs to be comparable. Unknown values are None."""

    world_size: int
    hosts: int | None
    """Number of machines."""
    devices: dict[Rank, str | None]
    versions: dict[str, str]


class Baseline(msgspec.Struct, frozen=True, kw_only=True):
    """Output of `esprof check --save-baseline`. Times in ns, rates per second, one value per step in the order of steps."""

    schema: str = SCHEMA
    command: tuple[str, ...] = ()
    """For information only; runs with different commands are comparable."""
    identity: RunIdentity
    phase: ComparedPhase
    samples: dict[str, tuple[float, ...]]
    """By metric: `step_time` always; `loader_wait`, `cpu_wait`, `samples_per_s` and `tokens_per_s` if recorded."""
    earlier: tuple[dict[str, tuple[float, ...]], ...] = ()
    """Samples of earlier runs of the same kind, latest first."""

    @property
    def runs(self) -> tuple[dict[str, tuple[float, ...]], ...]:
        """Samples of all runs, latest first."""
        return self.samples, *self.earlier

    def with_run(self, run: "Baseline") -> "Baseline":
        """This baseline and a later run; the oldest run is dropped beyond `MAX_RUNS`. Raises MismatchError if the run is
        not comparable."""
        refuse_mismatch(self, run)
        return msgspec.structs.replace(run, earlier=self.runs[: MAX_RUNS - 1])


def choose_phase(steps: JobSteps, min_steps: int) -> ComparedPhase:
    """`plain` if a run has at least `min_steps` such steps, otherwise `timed`."""
    return "plain" if len(steps.numbers("plain")) >= min_steps else "timed"


def measure(steps: JobSteps, phase: ComparedPhase) -> Baseline:
    """The samples of a run's steps in `phase`. Raises MismatchError if it has no such step."""
    run, numbers = steps.run, steps.numbers(phase)
    if not len(numbers):
        raise MismatchError(
            f"has no {SHOWN_PHASE[phase]} after its first step",
            path=run.path,
            remedy="Record more steps, or save a new baseline from a run like this one.",
        )
    samples = _samples(steps, numbers)
    return Baseline(command=run.meta.command, identity=identity_of(run), phase=phase, samples=samples)


def decode(raw: bytes, path: Path) -> Baseline:
    """Decode the content of a baseline file; `path` is for error messages. Raises InputError if it is invalid."""
    remedy = "Write one with `esprof check RUN --save-baseline FILE`."
    try:
        schema = msgspec.json.decode(raw, type=_BaselineEnvelope).schema
        if schema != SCHEMA:
            raise InputError(f"schema {schema!r} is not {SCHEMA!r}", path=path, remedy=remedy)
        baseline = msgspec.json.decode(raw, type=Baseline)
    except NOT_DECODED as error:
        raise InputError(f"is not an esprof baseline: {error}", path=path, remedy=remedy) from error
    if not all(samples.get(metric) for samples in baseline.runs for metric in {"step_time", *samples}):
        raise InputError("holds a metric without samples", path=path, remedy=remedy)
    return baseline


class _BaselineEnvelope(msgspec.Struct):
    schema: str


def refuse_mismatch(baseline: Baseline, run: Baseline) -> None:
    """Raise MismatchError with all differences if the two are not comparable."""
    differ = differences(baseline.identity, run.identity)
    if baseline.phase != run.phase:
        differ.append(f"steps: {baseline.phase} in the baseline, {run.phase} in this run")
    if differ:
        raise MismatchError(
            "the baseline was recorded in a different setting, so a difference in step time says nothing about the code: "
            + "; ".join(differ),
            remedy="Save a baseline on this setting with `esprof check RUN --save-baseline FILE`.",
        )


def differences(
    baseline: RunIdentity, run: RunIdentity, called: tuple[str, str] = ("in the baseline", "in this run")
) -> list[str]:
    """Differences of `run` from `baseline` as texts, with the two named as in `called`; empty if they are comparable."""
    before, now = _fields(baseline), _fields(run)
    return [
        f"{field}: {before.get(field) or 'unknown'} {called[0]}, {now.get(field) or 'unknown'} {called[1]}"
        for field in dict.fromkeys([*before, *now])
        if before.get(field) != now.get(field)
    ]


def _fields(identity: RunIdentity) -> dict[str, str | int | None]:
    devices = {f"device of rank {rank}": name or "unnamed" for rank, name in sorted(identity.devices.items())}
    versions = {f"{name} version": version for name, version in sorted(identity.versions.items())}
    return {"world size": identity.world_size, "hosts": identity.hosts} | devices | versions


def identity_of(run: Run) -> RunIdentity:
    """Identity of `run`."""
    hosts = {rank.host for rank in run.meta.ranks}
    return RunIdentity(
        world_size=run.world_size,
        hosts=None if None in hosts else len(hosts),
        devices={rank.rank: rank.device for rank in run.meta.ranks},
        versions={name: version for name, version in run.meta.versions.items() if name in _VERSIONS},
    )


def _samples(steps: JobSteps, numbers: np.ndarray) -> dict[str, tuple[float, ...]]:
    """Per metric one value for each of the steps `numbers`, without steps in which a rank lacks the metric."""
    step_ns = steps.durations_ns(numbers)
    values = {"step_time": step_ns.astype(np.float64)}
    for metric, column in (("samples_per_s", "samples"), ("tokens_per_s", "tokens")):
        counts = steps.over_ranks(numbers, column)
        known = (counts >= 0).all(axis=0) & (step_ns > 0)
        values[metric] = counts.sum(axis=0)[known] * NS_PER_S / step_ns[known]
    for metric, column in (("loader_wait", "loader_wait_ns"), ("cpu_wait", "ready_ns")):
        waits = steps.over_ranks(numbers, column)
        values[metric] = waits.max(axis=0)[(waits >= 0).all(axis=0)].astype(np.float64)
    return {metric: tuple(samples.tolist()) for metric, samples in values.items() if len(samples)}
