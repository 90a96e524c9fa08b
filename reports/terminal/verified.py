"""What came of a promise, as text for a terminal."""

from collections.abc import Iterable

from rich.table import Table

from esprof.analyzers.verified.answer import Verified
from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, headline, warned
from esprof.run.logs import Estimate

_VERDICTS = {
    "held": "held: the step observed lies in the interval promised",
    "close": "close: outside the interval promised, and no farther from the promise than allowed",
    "missed": "missed: outside the interval promised, and farther from the promise than allowed",
    "measured": "measured: nothing was promised",
}


def draw_verified(told: Verified, screen: Screen = PLAIN) -> str:
    """The verdict, the steps promised and observed with their intervals, and what was changed."""
    return drawn(
        screen,
        headline(f"{printable(told.spec)}: {_VERDICTS[told.verdict]}", screen),
        "",
        _steps(told),
        "",
        *(fact(name, text, screen) for name, text in _facts(told)),
        *warned(told.warnings),
    )


def _steps(told: Verified) -> Table:
    table = grid("", ">step", ">95 % interval", ">of the step as it is")
    rows = {"as it is": told.before, "promised": told.predicted, "observed": told.observed}
    for name, estimate in rows.items():
        if estimate is not None:
            table.add_row(
                name,
                units.duration(estimate.us),
                units.interval(estimate.low_us, estimate.high_us),
                units.pct(_share(told, estimate)),
            )
    return table


def _share(told: Verified, estimate: Estimate) -> float:
    return 100 * estimate.us / told.before.us


def _facts(told: Verified) -> Iterable[tuple[str, str]]:
    if told.error_pct is not None:
        yield "Error", f"{units.error_pct(told.error_pct)} of the step; allowed are {told.max_error_pct:g} %"
    for knob in told.knobs:
        yield "Knob", f"{knob.name} read back as {knob.before}, then {knob.after}"
    measured = f"{units.plural(told.steps, 'step')} each" if told.steps else "all steps of each run"
    yield (
        "Pairs",
        f"{len(told.pairs)}, of {measured}: "
        + ", ".join(
            f"{units.duration(pair.before.step_us)} → {units.duration(pair.after.step_us)}" for pair in told.pairs
        ),
    )
    yield "Job", str(told.job)
    if told.promise is not None and told.promise.note:
        yield "Note", told.promise.note
