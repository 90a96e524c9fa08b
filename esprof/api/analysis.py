"""The Analysis: a run with its graph, and its results as tables, graphs and figures."""

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
from esprof.analyzers.ops.over_ranks import Asked, ops
from esprof.analyzers.ops.sort import Sort
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
    """Build the graph of `run` and replay it. The Analysis reuses both for all results.

    `window` is a step of the window to analyse; by default the longest window, of several the latest. What-ifs are declined
    if the replay error exceeds `max_error_pct`, in per cent of a step.

    Raises InputError if the run has no graph and did not hang, UsageError if no window contains the step `window`.
    """
    return Analysis(run if window is None else at_window(run, window), max_error_pct)


class Analysis:
    """A run with its graph and its replay. Tables cover all ranks; the names of columns end in their unit.

    A run that hung before its first window has no graph. It has `verdict`, `diagnosis`, `findings`, `evidence`,
    `process_groups` and `hang`; methods that need the graph raise InputError.
    """

    def __init__(self, run: Run, max_error_pct: float = MAX_ERROR_PCT) -> None:
        self.run = run
        self._answers: dict[tuple[str, ...], ReplayAnswer] = {}
        self._replayed: Replayed | None = None
        try:
            self._replayed = Replayed.of(run, max_error_pct=max_error_pct)
        except InputError as error:
            self._why_not = error
            self.diagnosis = diagnose(run)  # Raises the same error, unless the job hung or died.

    @property
    def replayed(self) -> Replayed:
        """The run with its graph and its replay. Raises InputError if it has none."""
        if self._replayed is None:
            raise self._why_not
        return self._replayed

    @cached_property
    def job(self) -> RecordedJob:
        """The steps and samples of the run."""
        return RecordedJob(self.replayed.run)

    @cached_property
    def diagnosis(self) -> Diagnosis:
        """The result of `esprof diagnose --json`."""
        return diagnose_replayed(self.replayed, self.job, NOTHING)

    @property
    def verdict(self) -> str:
        """The diagnosis in one or two sentences."""
        return self.diagnosis.verdict

    def answer(self, scenarios: str | Sequence[str] = ()) -> ReplayAnswer:
        """The result of `esprof replay --json` with these what-ifs. Raises UsageError for an invalid scenario."""
        asked = _scenarios(scenarios)
        if asked not in self._answers:
            self._answers[asked] = answer(self.replayed, asked)
        return self._answers[asked]

    def steps(self) -> pd.DataFrame:
        """The steps of the window: measured and replayed duration and replay error, or why a step is excluded."""
        return frames.steps(self.answer())

    def breakdown(self) -> pd.DataFrame:
        """Time of each rank's mean step by activity. `esprof.analyzers.finding.RankBreakdown` defines the activities."""
        return frames.breakdown(self.diagnosis)

    def findings(self) -> pd.DataFrame:
        """Causes of lost time with ranks, estimated saving and advice, the most important first."""
        return frames.findings(self.diagnosis)

    def evidence(self) -> pd.DataFrame:
        """The evidence for the findings, one observation per row."""
        return frames.evidence(self.diagnosis)

    def operations(
        self,
        sort: Sort | None = None,
        top: int | None = None,
        pattern: str | None = None,
        by_shape: bool = False,
        by_rank: bool = False,
    ) -> pd.DataFrame:
        """Operations and modules with own and total time per mean steady-state step, as in `esprof ops`.

        `sort` is `own-gpu`, `total-gpu`, `own-cpu`, `total-cpu` or `calls`; by default own time, on the GPU if the job
        uses one. `top` limits the number of rows, `pattern` is a regular expression that names must contain. With
        `by_shape` the shapes of inputs get rows of their own, with `by_rank` the ranks. Raises UsageError for an unknown
        order, a `top` below 1 or an invalid pattern.
        """
        if sort is not None and sort not in _SORTS:
            raise UsageError(f"operations cannot be sorted by {sort!r}", remedy=f"Known: {', '.join(_SORTS)}.")
        if top is not None and top < 1:
            raise UsageError(f"top={top} leaves no operation", remedy="Pass 1 or more, or None for all.")
        try:
            wanted = re.compile(pattern) if pattern is not None else None
        except re.error as error:
            reason = f"{pattern!r} is not a regular expression: {error}"
            raise UsageError(reason, remedy="Use re.escape(NAME) to match a name literally.") from None
        asked = Asked(sort, maxsize if top is None else top, None, by_shape, wanted)
        return frames.operations(ops(self.replayed.steps, self.job.samples, asked), by_rank)

    def critical_path(self) -> pd.DataFrame:
        """The segments of the critical path through the steady-state steps, in order, across ranks."""
        return frames.critical_path(self.replayed)

    def timeline(self, steps: Collection[int] | None = None) -> pd.DataFrame:
        """Everything that took time, by rank, lane and start; in `steps`, by default all steps of the window.

        Raises UsageError for a step outside the window.
        """
        return frames.timeline(self.replayed, steps)

    def collectives(self) -> pd.DataFrame:
        """For each rank of each collective: arrival, delay after the first rank, waiting time and duration of the
        communication."""
        return frames.collectives(self.replayed)

    def what_if(self, scenarios: str | Sequence[str] = WHAT_IFS) -> pd.DataFrame:
        """Predicted duration of a step in each scenario (docs/reference/what-ifs.md).

        Raises UsageError for an invalid scenario.
        """
        return frames.what_if(self.answer(scenarios))

    def graph(self, path_only: bool = True, steps: Collection[int] | None = None) -> nx.DiGraph:
        """The critical path in `steps`, by default in all steps of the window; without `path_only`, all their nodes.

        The path includes steady-state steps only. Raises UsageError for a step outside the window, and if the graph would
        have more than `graphs.MAX_GRAPH_NODES` nodes.
        """
        within = frames.in_steps(self.replayed.built.dfg, steps)
        return graphs.critical_path(self.replayed, within) if path_only else graphs.whole(self.replayed, within)

    def process_groups(self) -> nx.Graph:
        """Ranks and process groups, with an edge for each membership."""
        return graphs.process_groups(self.run)

    def hang(self) -> nx.DiGraph:
        """Who waited for whom when the job hung (`esprof.run.flight.hang.wait_for_graph`).

        Empty if no rank is missing from a collective, such as when ranks entered different ones. `verdict` and `findings`
        name the ranks at fault.
        """
        return graphs.wait_for(self.run)

    @property
    def plot(self) -> Plots:
        """The charts of `esprof report`."""
        return Plots(self)

    def __repr__(self) -> str:
        step_us, found = self.diagnosis.step_us, len(self.diagnosis.findings)
        takes = "no step ended" if step_us is None else f"a step takes {readable.duration(ns(step_us))}"
        return f"<Analysis of {self.run!r}: {takes}, {found} finding{'' if found == 1 else 's'}>"

    def _repr_html_(self) -> str:
        findings = self.findings()[["id", "title", "ranks", "saving_us", "saving_pct", "confidence"]]
        return analysis_html(self.verdict, findings, self.breakdown())


def _scenarios(asked: str | Sequence[str]) -> tuple[str, ...]:
    """Return the scenarios as a tuple. Raises UsageError unless `asked` is a string or a sequence of strings."""
    if isinstance(asked, str):
        return (asked,)
    listed = tuple(asked) if isinstance(asked, Iterable) else (asked,)
    for one in listed:
        if not isinstance(one, str):
            raise UsageError(f"a scenario is a string, not {one!r}", remedy='Pass "gpu=2x", or ["gpu=2x", "cpu=2x"].')
    return listed
