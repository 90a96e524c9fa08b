"""Rules of diagnosis. Each is a file in `findings/` with the rule, its thresholds and its pages."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import cached_property

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.finding import Confidence, RankBreakdown, Severity
from esprof.analyzers.ops.gpu_calls import GpuCalls, gpu_calls
from esprof.analyzers.price import MIN_PCT_OF_STEP, MeasuredPrice
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.views.breakdown import breakdown
from esprof.analyzers.views.launching import Launching, launching
from esprof.core.types import Rank
from esprof.replay.ranks.blame import Blame
from esprof.replay.ranks.pipeline import Pipeline, pipeline_of
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.pricing import Pricer
from esprof.run.run import Run

FAMILIES = {
    1: "input data",
    2: "ranks and stragglers",
    3: "communication",
    4: "host and launch",
    5: "memory and allocator",
    6: "checkpoint",
    7: "kernels and padding",
    8: "hangs and pipelines",
    9: "quality of the evidence",
}
"""First digit of an id -> subject of its family."""

CERTAIN_SHARE = 0.5
"""Share of the predicted saving that is certain if every step does what is not necessary, as padding is. The errors of such
what-ifs are shares of a step, whatever they save, or not measured. Planted causes, priced by one term, gained at least
0.79 times their prediction beyond noise (`diagnosis_least_gained` of the eighth and ninth set)."""

MIN_EXPLAINED_PCT = 75.0
"""Least explained share of the critical path, in per cent, for a price of high confidence."""


@dataclass(frozen=True)
class Page:
    """Explanation of a finding in paragraphs, for `esprof explain ID` and `docs/reference/findings/`."""

    id: str
    title: str
    meaning: str
    evidence: str
    saving: str
    remedy: str

    @property
    def family(self) -> str:
        return FAMILIES[int(self.id[3])]


@dataclass(frozen=True, kw_only=True)
class Cause:
    """A cause of lost time that a rule has found, and the scenario without it."""

    id: str
    title: str
    ranks: tuple[Rank, ...]
    confidence: Confidence
    evidence: dict[str, Evidence]
    advice: str
    scenario: str | None = None
    """A what-if whose saving is the price of the finding; None if usual steps lose no time."""
    measured: MeasuredPrice | None = None
    """Measured price, if there is no scenario."""
    most_ns: float | None = None
    """Most that the evidence allows it to save of a step, ns; None if only the scenario limits it."""
    share_of_scenario: float = 1.0
    """Share of the scenario's saving that is due to the cause, if the scenario removes more than it."""
    certain_share: float = 0.0
    """Share of the saving that other evidence makes certain, whatever the error of such scenarios."""
    is_bound: bool = False
    """Whether the scenario is no remedy, so that any remedy saves less."""
    severity: Severity | None = None
    """Derived from the price if None."""


@dataclass(frozen=True)
class Case:
    """Input of a rule: a run with its replay."""

    replayed: Replayed
    job: RecordedJob
    """The steps and samples of the same run."""

    @cached_property
    def breakdown(self) -> tuple[RankBreakdown, ...]:
        """Breakdown of each rank's mean step."""
        return breakdown(self.replayed)

    @cached_property
    def gpu_calls(self) -> dict[Rank, GpuCalls]:
        """Calls of each rank with the GPU work that they launched."""
        return {rank: gpu_calls(self.run.events(rank), rank, self.replayed.steps) for rank in self.ranks}

    @cached_property
    def launching(self) -> Launching:
        """How the kernels of the first rank's steady-state steps are launched; all ranks run one program."""
        return launching(self.run.events(self.ranks[0]), self.replayed.steps.steady)

    @cached_property
    def pipeline(self) -> Pipeline | None:
        """The pipelines that the ranks form; None if they form none, or if it is unknown."""
        return pipeline_of(self.run, self.replayed.built.dfg, self.replayed.steps.steady)

    @property
    def communication(self) -> Replayed:
        """The run with all communication of all ranks. Of a large run other work is not in its graph."""
        return self.replayed

    @property
    def run(self) -> Run:
        return self.replayed.run

    @property
    def pricer(self) -> Pricer:
        return self.replayed.pricer

    @property
    def ranks(self) -> tuple[Rank, ...]:
        """The ranks whose graph is at hand: all, or those of a large run that are examined."""
        return self.replayed.built.dfg.marks.ranks

    @property
    def blame(self) -> Blame:
        return self.replayed.blame

    @property
    def is_explained(self) -> bool:
        return self.replayed.explained_pct >= MIN_EXPLAINED_PCT

    def is_worth_reporting(self, saving_ns: float | None) -> bool:
        """Whether the saving of a step is large enough for a finding; None counts as zero."""
        return saving_ns is not None and 100 * saving_ns / self.pricer.step_ns >= MIN_PCT_OF_STEP


@dataclass(frozen=True, kw_only=True)
class Rule:
    """Finds causes of one kind. Exactly one of `of_case` and `of_job` is given."""

    pages: tuple[Page, ...]
    of_case: Callable[[Case], Iterable[Cause]] | None = None
    """Finds causes in a replayed run."""
    of_job: Callable[[RecordedJob], Iterable[Cause]] | None = None
    """Finds causes in data recorded outside of windows; needs no replay."""
    scenarios: tuple[str, ...] = field(default=())
    """What-ifs that it always needs: they are priced together before the rules run."""
    stops_the_job: bool = False
    """Whether its causes stop the job rather than slow it down. They are listed first."""

    @property
    def ids(self) -> frozenset[str]:
        """Ids of the findings that it may find."""
        return frozenset(page.id for page in self.pages)
