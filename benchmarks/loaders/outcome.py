"""What came of a change that was predicted, and the table of all changes."""

from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean, median

import msgspec

from benchmarks.figures import show, table
from benchmarks.loaders.predicted import Predicted
from benchmarks.settings import noise_pct

MAX_STARVED_PCT = 5.0
"""Share of the time to make batches spent waiting for CPUs up to which a change counts for the summary."""

COLUMNS = (
    "job",
    "change",
    "what-if",
    ">before ms",
    ">predicted ms",
    ">observed ms",
    ">error %",
    "held",
    ">min(F, P, G) %",
    ">no change %",
    ">starved %",
    ">noise %",
)


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of a job without and with a change: ms a step, one for each repeat."""

    before: tuple[float, ...]
    after: tuple[float, ...]
    pressure_pct: float | None
    """Share of the time of all runs in which some process of the machine waited for a CPU; None if unknown."""


@dataclass(frozen=True)
class Outcome:
    """A change, as predicted and as measured."""

    job: str
    is_own: bool
    """Whether the job's author is that of the rules."""
    change: str
    what_if: str
    predicted: Predicted
    measured: Measured

    @property
    def before(self) -> float:
        """The step without the change, ms, in the mean of the repeats."""
        return fmean(self.measured.before)

    @property
    def observed(self) -> float:
        """The step with the change, ms, in the mean of the repeats."""
        return fmean(self.measured.after)

    @property
    def promised(self) -> float | None:
        """The step that esprof predicts, ms, without profiler."""
        return None if self.predicted.step is None else self._without_profiler(self.predicted.step)

    @property
    def error_pct(self) -> float | None:
        return None if self.promised is None else self._off(self.promised)

    @property
    def min_fpg_error_pct(self) -> float:
        return self._off(self._without_profiler(self.predicted.min_fpg))

    @property
    def no_change_error_pct(self) -> float:
        return self._off(self.before)

    @property
    def counts(self) -> bool:
        """Whether it counts for the summary."""
        return self.error_pct is not None and self.predicted.starved_pct < MAX_STARVED_PCT

    @property
    def is_held(self) -> bool | None:
        """Whether the observed step is within the interval."""
        low, high = self.predicted.low, self.predicted.high
        if low is None or high is None:
            return None
        return self._without_profiler(low) <= self.observed <= self._without_profiler(high)

    @property
    def noise_pct(self) -> float:
        """How far repeats lie apart, of the side on which they do more."""
        return max(noise_pct(side) for side in (self.measured.before, self.measured.after))

    def _without_profiler(self, step: float) -> float:
        """A step as it is without profiler, from one under it: the unchanged job tells their ratio."""
        return step * self.before / self.predicted.now

    def _off(self, step: float) -> float:
        return 100 * (step / self.observed - 1)

    def row(self) -> tuple[str, ...]:
        return (
            self.job,
            self.change,
            f"`{self.what_if}`",
            f"{self.before:.1f}",
            "declined" if self.promised is None else f"{self.promised:.1f}",
            f"{self.observed:.1f}",
            "–" if self.error_pct is None else f"{self.error_pct:+.1f}",
            {True: "yes", False: "no", None: "–"}[self.is_held],
            f"{self.min_fpg_error_pct:+.1f}",
            f"{self.no_change_error_pct:+.1f}",
            f"{self.predicted.starved_pct:.1f}",
            f"{self.noise_pct:.1f}",
        )

    def show(self) -> None:
        context = {"job": self.job, "change": self.change, "what_if": self.what_if, "held": self.is_held}
        context |= asdict(self.predicted) | msgspec.structs.asdict(self.measured)
        if self.error_pct is not None:
            show("loader_what_if_error", self.error_pct, "%", context)
        show("loader_min_fpg_error", self.min_fpg_error_pct, "%", context)
        show("loader_no_change_error", self.no_change_error_pct, "%", context)


def summary_rows(outcomes: Sequence[Outcome]) -> Iterable[tuple[str, ...]]:
    """Median and worst error over all changes that count."""
    counted = [one for one in outcomes if one.counts]
    of = {
        "error": [abs(one.error_pct) for one in counted if one.error_pct is not None],
        "fpg": [abs(one.min_fpg_error_pct) for one in counted],
        "none": [abs(one.no_change_error_pct) for one in counted],
    }
    if counted:
        held = f"{sum(one.is_held is True for one in counted)} of {len(counted)}"
        for name, reduce in (("median", median), ("worst", max)):
            error, fpg, none = (f"{reduce(of[key]):.1f}" for key in ("error", "fpg", "none"))
            yield (f"**{name}**", f"{len(counted)} changes", "", "", "", "", error, held, fpg, none, "", "")


def show_summary(outcomes: Sequence[Outcome]) -> None:
    """Print the figures of the summary: all jobs, and those of other authors."""
    for name, some in (("all", outcomes), ("others", [one for one in outcomes if not one.is_own])):
        for kind, _, _, _, _, _, error, _, fpg, none, *_ in summary_rows(some):
            context = {"jobs": name, "min_fpg": float(fpg), "no_change": float(none)}
            show(f"loader_what_if_error_{kind.strip('*')}", float(error), "%", context)


def section(outcomes: Sequence[Outcome]) -> str:
    """All changes as a Markdown table."""
    declined = sum(one.promised is None for one in outcomes)
    starved = sum(one.predicted.starved_pct >= MAX_STARVED_PCT for one in outcomes)
    rows = [*(one.row() for one in outcomes), *summary_rows(outcomes)]
    note = f"Declined: {declined}. Starved for at least {MAX_STARVED_PCT:g} % of the time, so not in the summary: {starved}."
    return f"{table(COLUMNS, rows)}\n\n{note}"
