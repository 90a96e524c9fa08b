"""The rounds of `esprof tune`: what was advised to a running job, what was promised, and what came of it."""

from pathlib import Path
from typing import Literal

import msgspec

from esprof.run import files
from esprof.run.lines import append_line, read_lines

Outcome = Literal["kept", "missed", "reverted", "refused", "nothing", "unknown"]
"""`missed` is kept, although steps take longer than promised; `nothing` that there was nothing to advise; `unknown` that the
job ended before it told, or could not be asked."""


Kind = Literal["assignment", "compression"]


class Round(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One round, a line of the log. Times are of a step."""

    round: int
    kind: Kind
    step: int
    """The step before which the job was asked."""
    outcome: Outcome
    plan: str | None = None
    """Id; None where none was made."""
    counts: tuple[int, ...] = ()
    """How many ESTs each rank was to have; empty in rounds of compression."""
    codec: str = ""
    """What gradients were to be encoded by, in rounds of compression."""
    noticed_step: int | None = None
    """The step at which the job was seen to have changed; None in rounds that nothing of the kind began."""
    before_us: float | None = None
    """Measured without the plan, beside `measured_us`."""
    predicted_us: float | None = None
    low_us: float | None = None
    high_us: float | None = None
    measured_us: float | None = None
    predicted_gain_pct: float | None = None
    gain_pct: float | None = None
    """Measured, in per cent of `before_us`, with its 95 % interval where the plan was tried by turns."""
    gain_low_pct: float | None = None
    gain_high_pct: float | None = None
    error_pct: float | None = None
    """How far the predicted step is off the measured one."""
    why: str = ""


_ROUND = msgspec.json.Decoder(Round)


def append(run: Path, one: Round) -> None:
    """Add it to the log of the Run directory `run`. Raises OutputError."""
    append_line(run / files.ROUNDS, one)


def read(run: Path) -> tuple[Round, ...]:
    """The rounds of a Run directory, oldest first. Raises InputError where the log cannot be read."""
    return read_lines(run / files.ROUNDS, _ROUND)
