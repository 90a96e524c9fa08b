"""The result of `verify` for a terminal."""

from collections.abc import Iterable

from rich.table import Table

from esprof.analyzers.verified.answer import Verified
from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, headline, warned
from esprof.run.logs import Estimate

_VERDICTS = {
    "held": "held: the observed step is inside the predicted interval",
    "close": "close: the observed step is outside the predicted interval, but within the allowed error",
    "unclear": "cannot be said: the repeats differ so much that the predicted step is inside the observed interval",
    "missed": "missed: the observed step is outside the predicted interval and beyond the allowed error",
    "measured": "measured: there was no prediction",
}


def draw_verified(result: Verified, screen: Screen = PLAIN) -> str:
    """The verdict, the predicted and observed steps with their intervals, and the change."""
    return drawn(
        screen,
        headline(f"{printable(result.spec)}: {_VERDICTS[result.verdict]}", screen),
        "",
        _steps(result),
        "",
        *(fact(name, text, screen) for name, text in _facts(result)),
        *warned(result.warnings),
    )


def _steps(result: Verified) -> Table:
    table = grid("", ">step", ">95 % interval", ">of baseline")
    rows = {"baseline": result.before, "predicted": result.predicted, "observed": result.observed}
    for name, estimate in rows.items():
        if estimate is not None:
            table.add_row(
                name,
                units.duration(estimate.us),
                units.interval(estimate.low_us, estimate.high_us),
                units.pct(_share(result, estimate)),
            )
    return table


def _share(result: Verified, estimate: Estimate) -> float:
    return 100 * estimate.us / result.before.us


def _facts(result: Verified) -> Iterable[tuple[str, str]]:
    if result.error_pct is not None:
        yield "Error", f"{units.error_pct(result.error_pct)} of the step; {result.max_error_pct:g} % allowed"
    for knob in result.knobs:
        yield "Knob", f"{knob.name} read back as {knob.before} without the change, {knob.after} with it"
    measured = f"{units.plural(result.steps, 'step')} each" if result.steps else "all steps of each run"
    yield (
        "Pairs",
        f"{len(result.pairs)}, of {measured}: "
        + ", ".join(
            f"{units.duration(pair.before.step_us)} → {units.duration(pair.after.step_us)}" for pair in result.pairs
        ),
    )
    yield "Job", str(result.job)
    if result.prediction is not None and result.prediction.note:
        yield "Note", result.prediction.note
