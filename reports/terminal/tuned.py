"""The rounds of `esprof tune`, as text for a terminal."""

import msgspec
from rich.text import Text

from esprof.core.text import printable
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, grid, headline
from esprof.run.logs import Round, RoundOutcome

OUTCOMES: dict[RoundOutcome, str] = {
    "kept": "accepted",
    "missed": "accepted, gain below prediction",
    "reverted": "rolled back",
    "refused": "refused",
    "nothing": "no change proposed",
    "unknown": "no result",
}


class Tuned(msgspec.Struct, frozen=True, kw_only=True):
    """`esprof tune --json`."""

    schema: str = "esprof.tune/1"
    run: str
    rounds: tuple[Round, ...]


def draw_round(one: Round, screen: Screen = PLAIN) -> str:
    """One round in one line."""
    parts = [f"esprof: round {one.round}, step {one.step:,}: {OUTCOMES[one.outcome]}"]
    if one.outcome != "nothing" and (one.counts or one.codec):
        parts.append(f"ESTs {_change(one)}" if one.counts else f"gradients by {_change(one)}")
    if one.measured_us is not None:
        steps = f"{units.duration(one.before_us)} to {units.duration(one.measured_us)}"
        parts.append(f"{steps} ({units.duration(one.predicted_us)} predicted)")
    if one.why:
        parts.append(printable(one.why, 200))
    return drawn(screen, Text("; ".join(parts)))


def draw_tuned(found: Tuned, screen: Screen = PLAIN) -> str:
    """A table of the rounds."""
    if not found.rounds:
        why = "The job reported too few steps. Check that its script trains with ElasticTrainer, and runs long enough."
        return drawn(screen, headline(why, screen))
    accepted = [one for one in found.rounds if one.outcome in ("kept", "missed") and one.gain_pct is not None]
    rows = grid(">round", ">step", "change", ">before", ">predicted", ">measured", ">gain", ">error", "", padding=2)
    for one in found.rounds:
        rows.add_row(
            str(one.round),
            units.count(one.step),
            _change(one),
            units.duration(one.before_us),
            units.duration(one.predicted_us),
            units.duration(one.measured_us),
            _gain(one),
            units.error_pct(one.error_pct),
            OUTCOMES[one.outcome],
        )
    title = f"{units.plural(len(found.rounds), 'round')}, {len(accepted)} with shorter steps"
    return drawn(screen, headline(title, screen), Text(), rows)


def _change(one: Round) -> str:
    return " ".join(map(str, one.counts)) if one.counts else printable(one.codec, 40)


def _gain(one: Round) -> str:
    if one.gain_pct is None:
        return ""
    if one.gain_low_pct is None or one.gain_high_pct is None:
        return units.pct(one.gain_pct)
    return f"{units.pct(one.gain_pct)} ({one.gain_low_pct:.1f} to {one.gain_high_pct:.1f})"
