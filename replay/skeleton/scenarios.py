"""What-ifs of a run whose ranks are built one by one: which terms change a rank by itself, and what they make of it."""

from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from typing import NamedTuple, TypeVar

import numpy as np

from esprof.replay.dfg import Dfg
from esprof.replay.ranks.blame import Blame
from esprof.replay.ranks.narrow import narrow
from esprof.replay.skeleton.blame import SkeletonBlame
from esprof.replay.skeleton.calibrated_rank import CalibratedRank
from esprof.replay.skeleton.contract import Skeleton
from esprof.replay.skeleton.job import ForAnswers
from esprof.replay.skeleton.joined import join
from esprof.replay.skeleton.nodes import JobNodes, own_nodes
from esprof.replay.whatif.apply import apply
from esprof.replay.whatif.communication.links import RecordedLinks
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.graph.selections import waits_for_device
from esprof.replay.whatif.scenario import Bound, Declined, GraphPart, NothingFound, Scenario, longer_ns
from esprof.replay.whatif.term import Edit, Term, TermPhase

_Key = TypeVar("_Key", bound=Hashable)

OF_ONE_RANK = frozenset({
    "allocator", "barriers", "buffers", "compile", "cpu", "data", "double_precision", "gpu", "host", "kernel", "launches",
    "loops", "padding", "python", "recompute", "repeated_calls", "runqueue", "small_operations", "sync", "unused_gradients",
})  # fmt: skip
"""Terms that need no rank but those that they change."""

OF_COMMUNICATION = frozenset({"collective", "communication", "cpu", "network", "overlap"})
"""Terms that change how long communication takes, which depends on several ranks. A skeleton of the job holds all of it."""


def needs_whole_graph(term: Term) -> bool:
    """Whether a term needs the graph of all ranks at once."""
    is_known = term.kind.name in OF_ONE_RANK | OF_COMMUNICATION
    return not is_known and term.kind.phase not in (TermPhase.MEND, TermPhase.LOAD)


def of_ranks(terms: Sequence[Term]) -> tuple[Term, ...]:
    """Those of the terms that change ranks, be it by themselves or as their peers work."""
    found = (term for term in terms if term.kind.name in OF_ONE_RANK or term.kind.phase is TermPhase.MEND)
    return tuple(term for term in found if not _is_seen(term, terms))


def of_skeleton(terms: Sequence[Term]) -> tuple[Term, ...]:
    """Those of the terms that change what a skeleton of the job holds, but for those that are applied last."""
    found = (term for term in terms if term.kind.name in OF_COMMUNICATION or _is_seen(term, terms))
    return tuple(term for term in found if term.kind.phase < TermPhase.BOUND)


def _is_seen(term: Term, among: Iterable[Term]) -> bool:
    """Whether a term of `OF_ONE_RANK` changes only what a skeleton holds: input data, if no other term looks at it."""
    return term.kind.name == "data" and all(other.kind.name != "sync" for other in among)


class BoundedTerms(NamedTuple):
    """Terms of a scenario that bound its steps (`Edit.bound`), without those that are applied last; all are of one kind."""

    terms: tuple[Term, ...]
    before: tuple[Term, ...]
    """The terms of the scenario that are applied before."""

    def bound(self, before: Scenario, after: Scenario) -> Bound:
        effect = self.terms[0].kind.effect
        assert isinstance(effect, Edit)
        assert effect.bound is not None
        return effect.bound(before, after, self.terms)


def bounded_terms(terms: Sequence[Term]) -> BoundedTerms | None:
    """Those of a scenario; None if there are none."""
    early = [term for term in terms if term.kind.phase < TermPhase.BOUND]
    found = tuple(term for term in early if isinstance(term.kind.effect, Edit) and term.kind.effect.bound)
    if not found:
        return None
    return BoundedTerms(found, tuple(term for term in terms if _place(term) < _place(found[0])))


def _place(term: Term) -> tuple[TermPhase, str]:
    """Where a term is applied among others."""
    return term.kind.phase, term.kind.name


@dataclass(frozen=True, kw_only=True)
class ComparedScenario(Scenario):
    """A scenario of terms that compare ranks, on the nodes of all ranks."""

    compared: SkeletonBlame
    """The work of the ranks as it is now."""

    @property
    def blame_now(self) -> Blame:
        return self.compared

    def mended(self, blame: Blame) -> "ComparedScenario":
        assert isinstance(blame, SkeletonBlame)
        return replace(self, compared=blame)


class Replaced(NamedTuple):
    """Nodes of a rank, as indexes into its `own_nodes`, and what they take instead, ns."""

    own: np.ndarray
    dur_ns: np.ndarray


def replaced(before: JobNodes, after: JobNodes) -> list[Replaced]:
    """The nodes of each rank whose duration differs, and their new durations."""
    found = []
    for one, other in zip(before.columns, after.columns, strict=True):
        # A rank that is the same has the same array.
        is_same = one["dur_ns"] is other["dur_ns"]
        own = np.zeros(0, np.uint8) if is_same else narrow(np.flatnonzero(one["dur_ns"] != other["dur_ns"]))
        found.append(Replaced(own, other["dur_ns"][own]))
    return found


@dataclass(frozen=True)
class RankTask:
    """A scenario of one rank."""

    spec: str
    """Terms of `OF_ONE_RANK`, as they are written; there may be none."""
    replaced: Replaced | None = None
    """What a comparison of all ranks replaces, before any of the terms is applied."""

    @property
    def may_change(self) -> bool:
        """Whether there is anything to change."""
        return bool(self.spec) or (self.replaced is not None and len(self.replaced.own) > 0)


@dataclass(frozen=True)
class Untouched:
    """What a scenario leaves as it was recorded."""

    never_longer: bool = True
    """As `Scenario.never_longer`, so are the next two."""
    never_shorter: bool = True
    has_recorded_cpu_work: bool = True
    edges: bool = True
    """Whether no edge was added or cut."""
    nobody_waits: bool = False
    """Whether no call waits for its device."""

    @classmethod
    def of_job(cls, ranks: Sequence["Untouched"]) -> "Untouched":
        """What holds of all ranks."""
        return cls(*(all(column) for column in zip(*map(astuple, ranks), strict=True)))


@dataclass(frozen=True)
class RankScenario:
    """What a scenario makes of one rank."""

    skeleton: Skeleton | None
    """None for that of the rank as it was recorded."""
    kept: Untouched
    notes: tuple[str, ...]
    missing: dict[str, str]
    """Targets of terms that found nothing to change on this rank -> the reason."""


UNCHANGED = RankScenario(None, Untouched(), (), {})
"""What a task makes of a rank if there is nothing to change."""


def scenarios_of_rank(
    steps: tuple[int, ...], of_rank: tuple[CalibratedRank, Mapping[_Key, RankTask]]
) -> dict[_Key, RankScenario | Declined]:
    """What each task makes of a rank's graph; `steps` are the steady-state ones."""
    rank, tasks = of_rank
    dfg = rank.graph()
    recorded = Scenario(rank.run, Blame(dfg, steps), dfg, part=GraphPart.ONE_RANK)
    contracts = ForAnswers.of(dfg)
    made: dict[_Key, RankScenario | Declined] = {}
    for key, task in tasks.items():
        try:
            made[key] = _made(recorded, task, contracts)
        except Declined as reason:
            made[key] = Declined(str(reason))
    return made


def _made(recorded: Scenario, task: RankTask, contracts: ForAnswers) -> RankScenario:
    now, dfg = recorded, recorded.dfg
    if task.replaced is not None:
        dur = dfg.dur_ns.copy()
        dur[own_nodes(dfg)[task.replaced.own]] = task.replaced.dur_ns
        now = replace(now, dfg=replace(dfg, dur_ns=dur))
    now, missing = _applied(now, parse(task.spec) if task.spec else ())
    kept = Untouched(
        never_longer=now.never_longer,
        never_shorter=now.never_shorter,
        has_recorded_cpu_work=now.has_recorded_cpu_work,
        edges=now.dfg.pred_idx is dfg.pred_idx,
        nobody_waits=not waits_for_device(now.dfg).any(),
    )
    return RankScenario(None if now.dfg is dfg else contracts.skeleton(now.dfg), kept, now.notes, missing)


def _applied(now: Scenario, terms: Sequence[Term]) -> tuple[Scenario, dict[str, str]]:
    """(the scenario changed by those of the terms that find something to change; as `RankScenario.missing`)."""
    try:
        return apply(now, terms), {}
    except NothingFound as reason:
        if len(terms) == 1:
            return now, {terms[0].target: str(reason)}
    missing: dict[str, str] = {}
    for term in terms:
        try:
            apply(now, [term])
        except NothingFound as reason:
            missing[term.target] = str(reason)
    return apply(now, [term for term in terms if term.target not in missing]), missing


@dataclass(frozen=True, kw_only=True)
class SkeletonScenario(Scenario):
    """A scenario whose graph is a skeleton of the job."""

    contracted: Dfg
    """The graph before terms of `OF_COMMUNICATION` changed it."""
    kept: Untouched
    """By the terms that change ranks."""
    recorded_links: RecordedLinks

    @property
    def links(self) -> RecordedLinks:
        return self.recorded_links

    @property
    def has_recorded_nodes(self) -> bool:
        return True

    @property
    def only_changes_times(self) -> bool:
        return self.least_ns is None and self.kept.edges

    @property
    def never_longer(self) -> bool:
        return self.kept.never_longer and bool((self._longer_ns <= 0).all())

    @property
    def never_shorter(self) -> bool:
        return self.kept.never_shorter and bool((self._longer_ns >= 0).all())

    @property
    def has_recorded_cpu_work(self) -> bool:
        return self.kept.has_recorded_cpu_work

    @property
    def _longer_ns(self) -> np.ndarray:
        return longer_ns(self.contracted, self.dfg)


def joined(
    recorded: SkeletonScenario,
    skeletons: Iterable[Skeleton],
    terms: Iterable[Term],
    ranks: Iterable[RankScenario | Declined],
) -> SkeletonScenario:
    """The scenario of the job from those of its ranks, all of which applied these `terms`.

    `recorded` changes nothing, and the `skeletons` are those of the ranks as recorded. Raises Declined where a rank lacks
    the evidence, and where no rank has what a term changes."""
    found: list[RankScenario] = []
    for one in ranks:
        if isinstance(one, Declined):
            raise one
        found.append(one)
    for term in terms:
        if all(term.target in one.missing for one in found):
            raise NothingFound(found[0].missing[term.target])
    dfg = recorded.dfg
    if any(one.skeleton for one in found):
        dfg = join([one.skeleton or as_recorded for one, as_recorded in zip(found, skeletons, strict=True)]).dfg
    notes = tuple(dict.fromkeys(note for one in found for note in one.notes))
    return replace(recorded, dfg=dfg, contracted=dfg, kept=Untouched.of_job([one.kept for one in found]), notes=notes)
