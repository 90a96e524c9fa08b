"""The recommendation of a DataLoader's workers and prefetching, for a terminal."""

from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from esprof.analyzers.advisors.loader.answer import NO_STALL, NOW, LoaderAdvice, name_of
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline


def draw_loader(advice: LoaderAdvice, screen: Screen = PLAIN) -> str:
    """The advised setting, the predicted step with each setting, and the evidence."""
    now, then = (units.duration(value) for value in (advice.baselines[NOW], advice.value))
    if advice.plan is not None:
        title = f"With {name_of(advice.decision)}, a step would take {then} instead of {now}"
    else:
        title = "No change recommended: no other DataLoader setting shortens a step significantly"
    blocks: list[RenderableType] = [headline(title, screen), Text(), heading("Settings of each rank's DataLoader")]
    rows = grid(">workers", ">prefetch", ">step", "", padding=2)
    for one in advice.choices:
        marks = [("now", one.loader == advice.now), ("smallest good one", one.loader == advice.decision)]
        rows.add_row(
            str(one.loader.workers),
            units.UNKNOWN if one.loader.prefetch is None else str(one.loader.prefetch),
            units.duration(one.step_us),
            "; ".join(name for name, holds in marks if holds),
        )
    return drawn(screen, *blocks, rows, Text(), *_facts(advice, screen))


def _facts(advice: LoaderAdvice, screen: Screen) -> Iterable[Text]:
    interval = units.interval(advice.low_us, advice.high_us)
    yield fact("Range", f"{interval}; prediction error {units.pct(advice.error_pct)} of a step", screen)
    yield fact("Gain", f"{units.pct(advice.gain_pct)} of a step, if nothing else changes", screen)
    if NO_STALL in advice.baselines:
        yield fact(
            "Limit", f"{units.duration(advice.baselines[NO_STALL])} a step if no rank waited for batches", screen
        )
    if advice.cpus is not None:
        yield fact("CPUs", f"{advice.cpus:.3g} for each rank, which limit the workers that are tried", screen)
    (note,) = (one.note for one in advice.choices if one.loader == advice.decision)
    for text in [*advice.warnings, *([note] if note else [])]:
        yield fact("Note", text, screen)
    for setting, reason in advice.left_out.items():
        yield fact("Skipped", f"{setting}: {reason}", screen)
    yield fact("Omits", "; ".join(advice.not_modelled), screen)
