"""The Analysis: a run with its graph, built once, and every question that a notebook asks of it."""

import re
from collections.abc import Collection, Iterable, Sequence
from functools import cached_property
from sys import maxsize
from typing import get_args

import networkx as nx
import pandas as pd

from esprof.analyzers.diagnosis import diagnose, diagnose_replayed
from esprof.analyzers.finding import Diagnosis
from esprof.analyzers.ignore import NOTHING
from esprof.analyzers.ops import Asked, Sort, ops
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.summary.summary import WHAT_IFS
from esprof.api import frames, graphs
from esprof.api.plots import Plots
from esprof.api.shown import analysis_html
from esprof.core import readable
from esprof.core.errors import InputError, UsageError
from esprof.core.types import ns
from esprof.replay.answer import ReplayAnswer
from esprof.replay.replayed import Replayed, answer
from esprof.replay.steps import at_window
from esprof.replay.whatif.pricing import MAX_ERROR_PCT
from esprof.run.run import Run

_SORTS: tuple[str, ...] = get_args(Sort)


def analyze(run: Run, window: int | None = None, max_error_pct: float = MAX_ERROR_PCT) -> "Analysis":
    """Build the graph of `run` and replay it, once for all that is asked of the Analysis.

    `window` is a step of the window to look at; without it, the longest, and of equals the latest. What-ifs are declined
    where replay's own error is above `max_error_pct`, in per cent of a step.

    Raises InputError where the run has no graph and did not hang either, UsageError where no window holds that step.
    """
    return Analysis(run if window is None else at_window(run, window), max_error_pct)


class Analysis:
    """A run with its graph and replay. Tables have all ranks, and columns that name their unit.

    Of a run that hung before it had a window there is no graph: `verdict`, `findings`, `evidence` and `hang` answer, the
    rest raises InputError.
    """

    def __init__(self, run: Run, max_error_pct: float = MAX_ERROR_PCT) -> None:
        self.run = run
        self._answers: dict[tuple[str, ...], ReplayAnswer] = {}
        self._replayed: Replayed | None = None
        try:
            self._replayed = Replayed.of(run, max_error_pct=max_error_pct)
        except InputError as error:
            self._why_not = error
            self.diagnosis = diagnose(run)  # Raises the same, unless something can be said without a graph.

    @property
    def replayed(self) -> Replayed:
        """The run with its graph and its replay. Raises InputError where it has none."""
        if self._replayed is None:
            raise self._why_not
        return self._replayed

    @cached_property
    def job(self) -> RecordedJob:
        """The steps and samples of the run, each looked at once."""
        return RecordedJob(self.replayed.run)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """What `esprof diagnose --json` prints."""
        return diagnose_replayed(self.replayed, self.job, NOTHING)

    @property
    def verdict(self) -> str:
        """The diagnosis in one or two sentences."""
        return self.diagnosis.verdict

    def answer(self, scenarios: str | Sequence[str] = ()) -> ReplayAnswer:
        """What `esprof replay --json` prints, with these what-ifs. Raises UsageError for what is no scenario."""
        asked = _scenarios(scenarios)
        if asked not in self._answers:
            self._answers[asked] = answer(self.replayed, asked)
        return self._answers[asked]

    def steps(self) -> pd.DataFrame:
        """The steps of the graph: measured, replayed, and the error of the replay; or why a step is left out."""
        return frames.steps(self.answer())

    def breakdown(self) -> pd.DataFrame:
        """Where the mean step of each rank goes; see `esprof.analyzers.finding.RankBreakdown` for what counts as what."""
        return frames.breakdown(self.diagnosis)

    def findings(self) -> pd.DataFrame:
        """What the step time is lost to, most time first, with ranks, price and advice."""
        return frames.findings(self.diagnosis)

    def evidence(self) -> pd.DataFrame:
        """What the findings rest on: a row an observation."""
        return frames.evidence(self.diagnosis)

    def operations(
        self,
        sort: Sort | None = None,
        top: int | None = None,
        pattern: str | None = None,
        by_shape: bool = False,
        by_rank: bool = False,
    ) -> pd.DataFrame:
        """Operations and modules by own and total time, per mean steady-state step, as `esprof ops` has them.

        `pattern` is a regular expression that names have to contain; `top` keeps the first rows. Raises UsageError for an
        unknown order, a `top` below 1 and an invalid pattern.
        """
        if sort is not None and sort not in _SORTS:
            raise UsageError(f"operations cannot be sorted by {sort!r}", remedy=f"Known: {', '.join(_SORTS)}.")
        if top is not None and top < 1:
            raise UsageError(f"top={top} leaves no operation", remedy="Give 1 or more, or None for all.")
        try:
            wanted = re.compile(pattern) if pattern is not None else None
        except re.error as error:
            reason = f"{pattern!r} is no regular expression: {error}"
            raise UsageError(reason, remedy="re.escape(NAME) takes a name as it is.") from None
        asked = Asked(sort, maxsize if top is None else top, None, by_shape, wanted)
        return frames.operations(ops(self.replayed.steps, self.job.samples, asked), by_rank)

    def critical_path(self) -> pd.DataFrame:
        """The stretches of the critical path through the steady-state steps, in order, across ranks."""
        return frames.critical_path(self.replayed)

    def timeline(self, steps: Collection[int] | None = None) -> pd.DataFrame:
        """All that took time, by rank, lane and start; of these steps, or all of the graph.

        Raises UsageError for a step that the graph lacks.
        """
        return frames.timeline(self.replayed, steps)

    def collectives(self) -> pd.DataFrame:
        """When each rank arrived at each collective, how late that is, how long it waited, and what the transfer took."""
        return frames.collectives(self.replayed)

    def what_if(self, scenarios: str | Sequence[str] = WHAT_IFS) -> pd.DataFrame:
        """What a step would take, in each scenario of docs/reference/what-ifs.md.

        Raises UsageError for what is no scenario.
        """
        return frames.what_if(self.answer(scenarios))

    def graph(self, path_only: bool = True, steps: Collection[int] | None = None) -> nx.DiGraph:
        """The critical path as a graph, of these steps or of all; without `path_only`, all of their nodes.

        The path holds steady steps alone. Raises UsageError for a step that the graph lacks, and where all nodes would be
        more than `graphs.MAX_GRAPH_NODES`.
        """
        within = frames.in_steps(self.replayed.built.dfg, steps)
        return graphs.critical_path(self.replayed, within) if path_only else graphs.whole(self.replayed, within)

    def process_groups(self) -> nx.Graph:
        """Ranks and process groups, an edge for each membership."""
        return graphs.process_groups(self.run)

    def hang(self) -> nx.DiGraph:
        """Who waited for whom when the job hung (`esprof.run.flight.hang.wait_for_graph`).

        Empty where every rank has entered the collective that it waits in, as where ranks call unlike ones. `verdict` and
        `findings` say which ranks are at fault.
        """
        return graphs.wait_for(self.run)

    @property
    def plot(self) -> Plots:
        """The charts of the page."""
        return Plots(self)

    def __repr__(self) -> str:
        step_us, found = self.diagnosis.step_us, len(self.diagnosis.findings)
        takes = "no step ended" if step_us is None else f"a step takes {readable.duration(ns(step_us))}"
        return f"<Analysis of {self.run!r}: {takes}, {found} finding{'' if found == 1 else 's'}>"

    def _repr_html_(self) -> str:
        findings = self.findings()[["id", "title", "ranks", "saving_us", "saving_pct", "confidence"]]
        return analysis_html(self.verdict, findings, self.breakdown())


def _scenarios(asked: str | Sequence[str]) -> tuple[str, ...]:
    """The scenarios as `answer` takes them. Raises UsageError for what is neither a text nor a list of texts."""
    if isinstance(asked, str):
        return (asked,)
    listed = tuple(asked) if isinstance(asked, Iterable) else (asked,)
    for one in listed:
        if not isinstance(one, str):
            raise UsageError(f"a scenario is a text, not {one!r}", remedy='Such as "gpu=2x", or ["gpu=2x", "cpu=2x"].')
    return listed
