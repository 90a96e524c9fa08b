"""Advice for the job of one run, from the advisor for each kind of change."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import msgspec

from esprof.analyzers.advisors.checkpoint.advise import advise_checkpoints
from esprof.analyzers.advisors.checkpoint.answer import CheckpointAdvice
from esprof.analyzers.advisors.compression.advise import advise_compression
from esprof.analyzers.advisors.compression.answer import MAX_VNMSE, CompressionAdvice
from esprof.analyzers.advisors.compression.ests import advise_est_codec
from esprof.analyzers.advisors.job.batches import BatchAdvice, advise_batches
from esprof.analyzers.advisors.job.est_answer import EstAdvice
from esprof.analyzers.advisors.job.ests import advise_ests
from esprof.analyzers.advisors.job.growth import Inventory
from esprof.analyzers.advisors.job.planned import plan_of
from esprof.analyzers.advisors.loader.advise import advise_loader
from esprof.analyzers.advisors.loader.answer import LoaderAdvice
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.steps.saves import MAX_OVERHEAD_PCT
from esprof.core.errors import EsprofError, UsageError
from esprof.core.plan import Plan, PlanParts
from esprof.core.save_cost import Failures
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.graph.est_load import has_est_records
from esprof.run.run import Run

Kind = Literal["assignment", "compression", "loader", "checkpoint"]
"""What advice changes, as the parts of a plan are called."""

Advice = EstAdvice | BatchAdvice | CompressionAdvice | LoaderAdvice | CheckpointAdvice


@dataclass(frozen=True, kw_only=True)
class Wanted:
    """What advice has to keep to."""

    inventory: Inventory | None = None
    """Other devices that an elastic job may get."""
    max_vnmse: float = MAX_VNMSE
    """Share of its square that the gradient may lose by compression."""
    max_overhead_pct: float = MAX_OVERHEAD_PCT
    """Time that saves may take, in per cent of the steps without them."""
    failures: Failures | None = None
    """How often the job fails; None if that is not known."""


class Recommendations(msgspec.Struct, frozen=True, kw_only=True):
    """All advice for one job. The gain of each is that of this change alone."""

    schema: Literal["esprof.recommendations/1"] = "esprof.recommendations/1"
    advice: dict[Kind, Advice]
    declined: dict[Kind, str]
    """Why there is no advice of this kind."""
    plan: Plan | None
    """All parts that are recommended; None if there are none."""


class _Source:
    """A run, and its replay and its steps once an advisor needs them."""

    def __init__(self, of: Run | Replayed, job: RecordedJob | None = None) -> None:
        self._of = of
        self._job = job

    @property
    def run(self) -> Run:
        return self._of.run if isinstance(self._of, Replayed) else self._of

    @cached_property
    def replayed(self) -> Replayed:
        return self._of if isinstance(self._of, Replayed) else Replayed.of(self._of)

    @cached_property
    def job(self) -> RecordedJob:
        return self._job or RecordedJob(self.run)


def recommend(of: Run | Replayed, kind: Kind, wanted: Wanted = Wanted()) -> Advice:
    """Advise one kind of change. Raises EsprofError if the run lacks data, UsageError for an inventory if the job is not
    elastic."""
    return _ADVISORS[kind](_Source(of), wanted)


def recommend_all(of: Run | Replayed, wanted: Wanted = Wanted(), job: RecordedJob | None = None) -> Recommendations:
    """Advise every change of which the run has evidence. A `job` of the same run is not read again. Raises EsprofError if
    there is none."""
    source, advice, declined = _Source(of, job), dict[Kind, Advice](), dict[Kind, str]()
    for kind, advise in _ADVISORS.items():
        try:
            advice[kind] = advise(source, wanted)
        except EsprofError as error:
            declined[kind] = error.reason
    if not advice:
        reasons = "; ".join(f"{kind}: {reason}" for kind, reason in declined.items())
        raise EsprofError(f"gives no advice: {reasons}", path=source.run.path)
    return Recommendations(advice=advice, declined=declined, plan=_plan_of_all(source.run, advice))


def _plan_of_all(run: Run, advice: dict[Kind, Advice]) -> Plan | None:
    """One plan with the parts of all plans."""
    plans = {kind: getattr(one, "plan", None) for kind, one in advice.items()}
    parts = {kind: getattr(plan.parts, kind) for kind, plan in plans.items() if plan is not None}
    return plan_of(run, PlanParts(**parts)) if parts else None


def _assignment(source: _Source, wanted: Wanted) -> EstAdvice | BatchAdvice:
    """The assignment of ESTs of an elastic job, or the samples of each rank of another one."""
    if has_est_records(source.replayed.run):
        return advise_ests(source.replayed, wanted.inventory)
    if wanted.inventory is not None:
        raise UsageError("only jobs of ElasticTrainer(telemetry=RUN) can get advice on other devices")
    return advise_batches(source.replayed, source.job.steps)


def _compression(source: _Source, wanted: Wanted) -> CompressionAdvice:
    """A codec for each gradient bucket of a DDP job, which needs shapes and a probe, or for all ESTs of an elastic job,
    which needs the exchanges that `esprof tune --allow compression` measures."""
    advise = advise_est_codec if has_est_records(source.replayed.run) else advise_compression
    return advise(source.replayed, wanted.max_vnmse)


def _loader(source: _Source, wanted: Wanted) -> LoaderAdvice:
    """The workers of the DataLoaders, and how far ahead they work."""
    return advise_loader(source.replayed)


def _checkpoint(source: _Source, wanted: Wanted) -> CheckpointAdvice:
    """The interval of checkpoints."""
    return advise_checkpoints(source.job, max_overhead_pct=wanted.max_overhead_pct, failures=wanted.failures)


_ADVISORS: dict[Kind, Callable[[_Source, Wanted], Advice]] = {
    "assignment": _assignment,
    "compression": _compression,
    "loader": _loader,
    "checkpoint": _checkpoint,
}
