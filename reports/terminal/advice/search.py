"""The best set of changes of one job, for a terminal."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from esprof.analyzers.advisors.search.answer import NOW, SearchAdvice, SearchedTerm
from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline


def draw_search(advice: SearchAdvice, screen: Screen = PLAIN) -> str:
    """The set in the order to apply it, what each change gains, the terms that were searched, and what is proven."""
    blocks: list[RenderableType] = [headline(_title(advice), screen), Text()]
    if advice.decision:
        blocks += [heading("Changes, in the order to apply them"), _changes(advice), Text()]
    blocks += [heading("Terms, and the most that each can gain"), _terms(advice), Text()]
    return drawn(screen, *blocks, *_facts(advice, screen))


def _title(advice: SearchAdvice) -> str:
    if not advice.decision:
        return "No change recommended: no set of changes shortens a step by more than the error of replay"
    now, then = (units.duration(value) for value in (advice.baselines[NOW], advice.value))
    count = len(advice.decision)
    changes = "this change" if count == 1 else f"these {count} changes together"
    if not advice.is_worth_it:
        return f"No change recommended: with {changes}, a step might take {then} instead of {now}, which is uncertain"
    return f"With {changes}, a step would take {then} instead of {now}{_peaks(advice)}"


def _peaks(advice: SearchAdvice) -> str:
    if advice.peak is None or advice.peak_now is None or advice.peak.peak == advice.peak_now.peak:
        return ""
    then, now = units.size(advice.peak.peak), units.size(advice.peak_now.peak)
    return f", and a rank would need {then} of memory instead of {now}"


def _changes(advice: SearchAdvice) -> Table:
    rows = grid("change", ">gain alone", ">given the others", ">step after it", "to undo", padding=2)
    for one in advice.decision:
        rows.add_row(
            printable(one.change),
            units.duration(one.alone_us),
            units.duration(one.given_others_us),
            units.duration(one.step_after_us),
            one.revert.value,
        )
    return rows


def _terms(advice: SearchAdvice) -> Table:
    rows = grid("term", "values", ">ideal alone", ">given other ideals", "", padding=2)
    for one in advice.terms:
        rows.add_row(
            printable(one.term),
            printable(", ".join(value.removeprefix(f"{one.term}=") for value in one.values)),
            units.duration(one.ideal_alone_us),
            units.duration(one.ideal_given_others_us),
            _remark(one),
        )
    return rows


def _remark(term: SearchedTerm) -> str:
    if not term.searched:
        return "cannot gain enough"
    if term.ideal is None:
        return "no bound known"
    return "hidden by others now" if term.masked else ""


def _facts(advice: SearchAdvice, screen: Screen) -> Iterable[Text]:
    interval = units.interval(advice.low_us, advice.high_us)
    yield fact("Range", f"{interval}; prediction error {units.pct(advice.error_pct)} of a step", screen)
    yield fact("Gain", f"{units.pct(advice.gain_pct)} of a step", screen)
    bound = units.duration(advice.lower_bound_us)
    yield fact("Bound", f"no set of these values is below {bound}, {units.pct(advice.gap_pct)} less", screen)
    counted = "1 replay" if advice.replays == 1 else f"{units.count(advice.replays)} replays"
    if advice.complete:
        yield fact(
            "Search", f"complete, by {counted}: the shortest step is {units.duration(advice.shortest_us)}", screen
        )
    else:
        yield fact("Search", f"not complete after {counted}: only the bound is proven (--max-replays)", screen)
    least = units.duration(advice.least_gain_us)
    yield fact("Least", f"{least}: a gain below that counts as none (twice the error of replay, at least 1 %)", screen)
    if advice.peak is not None:
        rank, peak, most = advice.peak.rank, units.size(advice.peak.peak), units.size(advice.max_memory)
        yield fact("Memory", f"{peak} at most, on rank {rank}; the limit is {most}", screen)
    if advice.what_if is not None:
        yield fact("Replay", f"esprof replay RUN --what-if {printable(advice.what_if)}", screen, None)
    for warning in advice.warnings:
        yield fact("Note", warning, screen)
    for name, reason in advice.left_out.items():
        yield fact("Skipped", f"{name}: {reason}", screen)
    yield fact("Omits", "; ".join(advice.not_modelled), screen, 4)
