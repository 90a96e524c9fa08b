"""Advise the set of changes that makes a step shortest, from one run: a search over what-if terms, priced by replay."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from esprof.analyzers.advisors.search.answer import ALL_IDEAL, NOW, ChosenChange, SearchAdvice, SearchedTerm
from esprof.analyzers.advisors.search.branch import (
    KnownSteps,
    SearchResult,
    SearchTerm,
    StepsOf,
    TermSet,
    anything,
    search,
)
from esprof.analyzers.advisors.search.changes import Revert, priced, revert_of, terms_of, usual_values
from esprof.analyzers.advisors.search.limit import LESS_MEMORY, PeakLimit
from esprof.analyzers.advisors.search.planned import plan_of_changes
from esprof.analyzers.advisors.step_advice import MIN_GAIN_IN_ERRORS
from esprof.analyzers.price import MIN_PCT_OF_STEP
from esprof.core.errors import EsprofError
from esprof.core.plan import Plan, PlanPromise
from esprof.core.types import Bytes, us
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import Price, Pricer
from esprof.replay.whatif.scenario import Declined

MAX_REPLAYS = 500
"""Default limit of the replays of sets."""


def advise_changes(
    replayed: Replayed,
    tries: Sequence[str] = (),
    *,
    max_vnmse: float,
    max_replays: int = MAX_REPLAYS,
    max_memory: Bytes | None = None,
) -> SearchAdvice:
    """Advise the best set of the changes that the job can carry out by itself, and of `tries`, whole what-if terms.

    Codecs may lose `max_vnmse` of the square of the gradient, unless `tries` has them. With `max_memory` no rank needs more,
    and changes that lower the peak are tried. Raises EsprofError if replay cannot predict this run, no term has a price, or
    no set fits; UsageError for a try that is no term, or whose gain has no known bound.
    """
    pricer, left_out = replayed.pricer, dict[str, str]()
    limit = None if max_memory is None else PeakLimit.of(replayed, max_memory)
    offered = [value for term in terms_of([*(LESS_MEMORY if limit else ()), *tries]) for value in term.values]
    if pricer.too_far_off:
        raise EsprofError(
            pricer.too_far_off, path=replayed.run.path, remedy="Record more steps, or on a quieter machine."
        )
    terms = priced(terms_of([*usual_values(replayed, max_vnmse, left_out), *offered]), replayed, left_out)
    if limit is not None:
        terms = limit.known(terms, left_out)
    if not terms:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in left_out.items())
        raise EsprofError(f"no change can be predicted: {reasons}", path=replayed.run.path)
    least_gain_ns = max(MIN_GAIN_IN_ERRORS * pricer.error.of_run, MIN_PCT_OF_STEP / 100) * pricer.step_ns
    steps = KnownSteps(_steps_of(pricer))
    start, allowed = ((), anything) if limit is None else (limit.start(terms, steps), limit.allows)
    found = search(terms, steps, least_gain_ns=least_gain_ns, max_replays=max_replays, start=start, allowed=allowed)
    chosen = _ordered(_fewest(found, steps, least_gain_ns, allowed), steps)
    searched = _Searched(replayed, terms, found, steps, least_gain_ns, chosen, limit)
    left_out = {name: reason for name, reason in left_out.items() if name not in found.gains}
    return searched.advice(left_out, max_vnmse, max_replays)


def _steps_of(pricer: Pricer) -> StepsOf:
    """The steps of scenarios by the prices of `pricer`; the empty one is the job as measured."""

    def step_ns(price: Price | Declined) -> float | None:
        return None if isinstance(price, Declined) else float(price.step_ns.mean())

    def steps(sets: Sequence[TermSet]) -> list[float | None]:
        prices = iter(pricer.prices(",".join(terms) for terms in sets if terms))
        return [step_ns(next(prices)) if terms else pricer.step_ns for terms in sets]

    return steps


def _fewest(
    found: SearchResult, steps: KnownSteps, least_gain_ns: float, allowed: Callable[[TermSet], bool]
) -> TermSet:
    """The best set without those changes that all together gain less than `least_gain_ns`, or nothing, and that it is
    allowed without."""
    chosen = found.chosen
    while fewer := [one for left in chosen if allowed(one := tuple(other for other in chosen if other != left))]:
        shortest, without = min(
            (float("inf") if step is None else step, one) for step, one in zip(steps(fewer), fewer, strict=True)
        )
        if shortest > found.step_ns and shortest - found.step_ns >= least_gain_ns:
            break
        chosen = without
    return chosen


def _ordered(chosen: TermSet, steps: KnownSteps) -> TermSet:
    """The cheapest change to undo first, of equal ones that with the largest gain given the others."""
    efforts, without = list(Revert), _without_each(chosen, steps)
    lost = {one: float("inf") if step is None else step for one, step in without.items()}
    return tuple(sorted(chosen, key=lambda one: (efforts.index(revert_of(one)), -lost[one])))


def _without_each(chosen: TermSet, steps: KnownSteps) -> dict[str, float | None]:
    """The step of the set without each of its changes, ns."""
    return dict(zip(chosen, steps([set(chosen) - {one} for one in chosen]), strict=True))


@dataclass(frozen=True)
class _Searched:
    """A search that has ended."""

    replayed: Replayed
    terms: Sequence[SearchTerm]
    found: SearchResult
    steps: KnownSteps
    least_gain_ns: float
    chosen: TermSet
    """The advised set, in the order in which to apply it."""
    limit: PeakLimit | None

    def advice(self, left_out: dict[str, str], max_vnmse: float, max_replays: int) -> SearchAdvice:
        pricer, spec = self.replayed.pricer, ",".join(self.chosen)
        terms = parse(spec) if spec else ()
        names = [term.kind.name for term in terms]
        price = pricer.price(spec) if spec else pricer.price_edited(pricer.dfg)
        step, interval, error = float(price.step_ns.mean()), pricer.interval(price, names), pricer.error.of_terms(names)
        gain, bound = 1 - step / pricer.step_ns, min(self.found.lower_bound_ns, step)
        promise = PlanPromise(
            step_us=us(step), low_us=us(interval.low_ns), high_us=us(interval.high_ns), baselines_us=self._baselines()
        )
        is_needed = self.limit is not None and not self.limit.allows(())
        is_worth_it = bool(terms) and (is_needed or gain >= MIN_GAIN_IN_ERRORS * error)
        plan: Plan | None = plan_of_changes(self.replayed, terms, promise) if is_worth_it else None
        return SearchAdvice(
            value=promise.step_us,
            low_us=promise.low_us,
            high_us=promise.high_us,
            baselines=promise.baselines_us,
            gain_pct=round(100 * gain, 3),
            error_pct=round(100 * error, 3),
            is_worth_it=is_worth_it,
            decision=tuple(self._changes()),
            what_if=spec or None,
            shortest_us=us(self.found.step_ns),
            lower_bound_us=us(bound),
            gap_pct=round(100 * (1 - bound / step), 3),
            complete=self.found.is_complete and not self.found.is_bound_broken,
            terms=tuple(map(self._searched, self.terms)),
            replays=self.steps.replays,
            max_replays=max_replays,
            least_gain_us=us(self.least_gain_ns),
            max_vnmse=max_vnmse,
            max_memory=None if self.limit is None else self.limit.most,
            peak_now=None if self.limit is None else self.limit.peak(()),
            peak=None if self.limit is None else self.limit.peak(self.chosen),
            left_out=left_out,
            plan=plan,
            warnings=tuple(self._warnings(price)),
        )

    def _baselines(self) -> dict[str, float]:
        found = {NOW: us(self.replayed.pricer.step_ns)}
        ideals = [term.ideal for term in self.terms]
        if all(ideal is not None for ideal in ideals):
            ideal = self.steps.of({one for some in ideals for one in some or ()})
            found |= {} if ideal is None else {ALL_IDEAL: us(ideal)}
        return found

    def _changes(self) -> Iterator[ChosenChange]:
        now, together = self.replayed.pricer.step_ns, self.steps.of(self.chosen)
        alone = self.steps([(one,) for one in self.chosen])
        after = self.steps([self.chosen[: count + 1] for count in range(len(self.chosen))])
        without = _without_each(self.chosen, self.steps)
        for change, step, then in zip(self.chosen, alone, after, strict=True):
            yield ChosenChange(
                change=change,
                alone_us=_shorter_us(now, step),
                given_others_us=_shorter_us(without[change], together),
                step_after_us=None if then is None else us(then),
                revert=revert_of(change),
            )

    def _searched(self, term: SearchTerm) -> SearchedTerm:
        gain = self.found.gains[term.name]
        is_kept = term.name not in self.found.dropped
        return SearchedTerm(
            term=term.name,
            values=term.values,
            ideal=term.ideal,
            ideal_alone_us=None if gain.alone_ns is None else us(gain.alone_ns),
            ideal_given_others_us=None if gain.given_others_ns is None else us(gain.given_others_ns),
            searched=is_kept,
            masked=gain.alone_ns is not None
            and gain.alone_ns < self.least_gain_ns
            and not gain.is_below(self.least_gain_ns),
        )

    def _warnings(self, price: Price) -> Iterator[str]:
        if self.found.is_bound_broken:
            yield "a set is faster than the bound from the ideals of its terms, so the bound proves nothing here"
        yield from price.notes


def _shorter_us(before: float | None, after: float | None) -> float | None:
    """By how much a step gets shorter, us; None if one of both is unknown. Times in ns."""
    return None if before is None or after is None else us(before - after)
