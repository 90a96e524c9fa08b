"""The shortest step of all sets of changes, by best-first branch and bound.

A term has values that exclude each other, and an ideal that no value beats. Chosen values of some terms, with the ideals
of all others, therefore bound the steps of all sets with these values from below; each bound is one replay. Changes do not
add: a slow DataLoader hides a slow link until it is fast itself. So a term is dropped only if its ideal gains too little
both alone and if all other terms are ideal.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush
from itertools import count

_ROUNDING = 1e-6
"""By how much, as a share, a step may be below its bound: replays count whole nanoseconds."""

TermSet = tuple[str, ...]
"""Terms of one scenario; empty for the job as recorded."""

StepsOf = Callable[[Sequence[TermSet]], Sequence[float | None]]
"""Mean step of each scenario, ns; None if it has no price."""


@dataclass(frozen=True)
class SearchTerm:
    """A term of the search."""

    name: str
    values: TermSet
    """Whole terms, such as `bucket_mb=50`, of which a set has at most one."""
    ideal: TermSet | None
    """Whole terms. With them, no value of this term makes a step shorter; terms may share an ideal. Empty if the job is
    fastest without any value of this term; None if no bound is known: then sets of each value are searched."""
    needed: bool = False
    """Whether the term is searched even if its ideal gains nothing: its values make a set allowed."""


@dataclass(frozen=True)
class IdealGain:
    """What the ideal of a term gains, ns; None if it has no price."""

    alone_ns: float | None
    given_others_ns: float | None
    """If all other terms are ideal."""

    def is_below(self, least_ns: float) -> bool:
        """Whether both are known and less than `least_ns`."""
        gains = (self.alone_ns, self.given_others_ns)
        return all(gain is not None and gain < least_ns for gain in gains)


@dataclass(frozen=True)
class SearchResult:
    """The set with the shortest step that was found."""

    chosen: TermSet
    """Allowed, as all sets that are compared here."""
    step_ns: float
    lower_bound_ns: float
    """No set of values of these terms has a shorter step, dropped terms included."""
    is_complete: bool
    """Whether no set of values of the terms that were not dropped has a shorter step."""
    is_bound_broken: bool
    """Whether a step was shorter than its bound: an ideal is none, and the bound proves nothing."""
    gains: Mapping[str, IdealGain]
    """Name of each term -> what its ideal gains."""
    dropped: frozenset[str]
    """Names of the terms that were not searched, since they cannot gain enough."""


class KnownSteps:
    """Steps of scenarios, each replayed once."""

    def __init__(self, steps: StepsOf) -> None:
        self._steps = steps
        self._known: dict[frozenset[str], float | None] = {}

    def __call__(self, sets: Iterable[Iterable[str]]) -> list[float | None]:
        """Mean step of each scenario, ns; None if it has no price. The unknown ones are replayed together."""
        asked = [frozenset(one) for one in sets]
        new = [one for one in dict.fromkeys(asked) if one not in self._known]
        found = self._steps([tuple(sorted(one)) for one in new])
        self._known.update(zip(new, found, strict=True))
        return [self._known[one] for one in asked]

    def of(self, terms: Iterable[str]) -> float | None:
        (step,) = self([terms])
        return step

    @property
    def replays(self) -> int:
        """Number of scenarios that were replayed."""
        return len(self._known) - (frozenset() in self._known)


def anything(_: TermSet) -> bool:
    """Allows each set."""
    return True


def search(
    terms: Sequence[SearchTerm],
    steps: KnownSteps,
    *,
    least_gain_ns: float = 0.0,
    max_replays: int = 1_000,
    start: TermSet = (),
    allowed: Callable[[TermSet], bool] = anything,
) -> SearchResult:
    """The set of values, at most one of each term, with the shortest mean step of those that are `allowed`.

    `start` is an allowed set. Values of terms that are not `needed` do not change whether a set is allowed.

    Terms whose ideal gains less than `least_gain_ns` are dropped; with 0 and enough replays the result is the optimum.
    Each ideal, each value alone and one descent are always replayed, and further sets up to about `max_replays`. Raises
    ValueError if the job as recorded, or `start`, has no price.
    """
    now = steps.of(())
    first = steps.of(start)
    if now is None or first is None:
        raise ValueError(f"the job {'with the start' if now else 'as recorded'} has no price")
    gains = _ideal_gains(terms, steps, now)
    dropped = frozenset(term.name for term in terms if not term.needed and gains[term.name].is_below(least_gain_ns))
    # Values of terms without a bound are chosen first: then all others bound the rest.
    kept = sorted(
        (term for term in terms if term.name not in dropped),
        key=lambda term: (term.ideal is not None, -_greatest(gains[term.name])),
    )
    alone = dict(zip((term.name for term in kept), _alone(kept, steps), strict=True))
    ordered = [(term, _shortest_first(term, alone[term.name], now)) for term in kept]
    ideals = _ideals(term for term in terms if term.name in dropped)
    tree = _SetTree(ordered, ideals, steps, (start, first), allowed)
    tree.descend()
    is_complete = tree.grow(steps.replays + max_replays)
    return SearchResult(
        chosen=tree.best,
        step_ns=tree.best_ns,
        lower_bound_ns=min(tree.lower_bound_ns(), tree.best_ns),
        is_complete=is_complete,
        is_bound_broken=tree.is_bound_broken,
        gains=gains,
        dropped=dropped,
    )


def _ideal_gains(terms: Sequence[SearchTerm], steps: KnownSteps, now: float) -> dict[str, IdealGain]:
    """What the ideal of each term gains. Terms that share an ideal have it, or have it not, together."""
    every = _ideals(terms)
    ideals = {term.name: term.ideal for term in terms if term.ideal is not None}
    alone = steps(ideals.values())
    others = steps([every.difference(ideal) for ideal in ideals.values()])
    all_ideal = steps.of(every)
    gains = {
        name: IdealGain(
            None if one is None else now - one,
            None if rest is None or all_ideal is None else rest - all_ideal,
        )
        for name, one, rest in zip(ideals, alone, others, strict=True)
    }
    return {term.name: gains.get(term.name, IdealGain(None, None)) for term in terms}


def _ideals(terms: Iterable[SearchTerm]) -> set[str]:
    """The ideals of all these terms together."""
    return {one for term in terms for one in term.ideal or ()}


def _greatest(gain: IdealGain) -> float:
    """The greater gain of the ideal, ns; unknown ones count as greatest."""
    if gain.alone_ns is None or gain.given_others_ns is None:
        return float("inf")
    return max(gain.alone_ns, gain.given_others_ns)


def _alone(terms: Sequence[SearchTerm], steps: KnownSteps) -> list[list[float | None]]:
    """The step with each value alone, ns, by term. All are replayed together."""
    found = iter(steps([(value,) for term in terms for value in term.values]))
    return [[next(found) for _ in term.values] for term in terms]


def _shortest_first(term: SearchTerm, alone: Sequence[float | None], now: float) -> list[str | None]:
    """The values of a term, and None for none of them, by their step alone; those without a price last."""
    took = {value: float("inf") if step is None else step for value, step in zip(term.values, alone, strict=True)}
    return sorted([None, *term.values], key=lambda value: now if value is None else took[value])


class _SetTree:
    """Sets of values, term by term. A node has values (None for none) of the first terms."""

    def __init__(
        self,
        terms: Sequence[tuple[SearchTerm, list[str | None]]],
        dropped_ideals: set[str],
        steps: KnownSteps,
        start: tuple[TermSet, float],
        allowed: Callable[[TermSet], bool],
    ) -> None:
        """`start` is an allowed set and its step, ns."""
        self._terms = terms
        self._without_bound = sum(term.ideal is None for term, _ in terms)
        """How many of the first terms have no bound. A node has none either before it has values of them all."""
        self._dropped_ideals = dropped_ideals
        self._steps = steps
        self._allowed = allowed
        self.best, self.best_ns = start
        self.is_bound_broken = False
        self._serial = count()
        self._open: list[tuple[float, int, int, tuple[str | None, ...]]] = []
        """Heap of nodes, the least bound first, of equal ones the deepest."""
        self._least_closed_ns = float("inf")
        """Least bound of the sets that are complete except for dropped terms, ns."""
        self._root_ns = self._bounds([()])[0] or 0.0
        self._push((), self._root_ns)

    def descend(self) -> None:
        """Choose the best value of one term after the other while that helps: a good set to compare bounds with."""
        before = float("inf")
        while self.best_ns < before:
            before = self.best_ns
            for term, values in self._terms:
                others = tuple(value for value in self.best if value not in term.values)
                self._note([others if value is None else (*others, value) for value in values], self._root_ns)

    def grow(self, max_replays: int) -> bool:
        """Extend the node of the least bound until none is below the best step. Returns False if `max_replays` in all did
        not suffice."""
        while self._open and self._open[0][0] < self.best_ns:
            if self._steps.replays >= max_replays:
                return False
            bound, _, _, node = heappop(self._open)
            children = [(*node, value) for value in self._terms[len(node)][1]] if len(node) < len(self._terms) else []
            if len(node) + 1 >= len(self._terms):
                self._close(children or [node], bound)
                continue
            for child, own in zip(children, self._bounds(children), strict=True):
                self._push(child, bound if own is None else own)
        return True

    def _close(self, leaves: Sequence[tuple[str | None, ...]], bound: float) -> None:
        """Replay leaves, whose parent has this bound. A leaf stands for sets with values of dropped terms too."""
        leaves = [leaf for leaf in leaves if self._allowed(_chosen(leaf))]
        self._note([_chosen(leaf) for leaf in leaves], bound)
        without_price = bound if self._dropped_ideals else float("inf")
        least = (without_price if own is None else own for own in self._bounds(leaves))
        self._least_closed_ns = min([self._least_closed_ns, *least])

    def lower_bound_ns(self) -> float:
        """Least bound of all sets that were not replayed, ns."""
        return min([self._least_closed_ns, *(bound for bound, *_ in self._open[:1])])

    def _push(self, node: tuple[str | None, ...], bound: float) -> None:
        heappush(self._open, (bound, -len(node), next(self._serial), node))

    def _note(self, sets: Sequence[TermSet], bound: float) -> None:
        """Replay the allowed ones of complete sets, and keep the best one; the `bound` should hold for all."""
        sets = [one for one in sets if self._allowed(one)]
        for one, step in zip(sets, self._steps(sets), strict=True):
            if step is None:
                continue
            self.is_bound_broken |= step < bound * (1 - _ROUNDING)
            if step < self.best_ns:
                self.best, self.best_ns = one, step

    def _bounds(self, nodes: Sequence[tuple[str | None, ...]]) -> list[float | None]:
        """The step with the values of each node and the ideals of all other terms, ns; None if that has no price, or a term
        without a bound is open. All nodes have values of equally many terms.

        Values of terms that share an ideal with an open term are part of that ideal.
        """
        if nodes and len(nodes[0]) < self._without_bound:
            return [None for _ in nodes]
        sets = []
        for node in nodes:
            ideals = self._dropped_ideals | _ideals(term for term, _ in self._terms[len(node) :])
            values = {
                value
                for value, (term, _) in zip(node, self._terms[: len(node)], strict=True)
                if value is not None and not (term.ideal and ideals.issuperset(term.ideal))
            }
            sets.append(ideals | values)
        return self._steps(sets)


def _chosen(node: Sequence[str | None]) -> TermSet:
    return tuple(value for value in node if value is not None)
