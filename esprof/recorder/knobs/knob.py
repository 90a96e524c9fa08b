"""What a knob is: how it is set in a process of the job, and how it is read back there."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple


class KnobState(NamedTuple):
    """How a knob stands in a process of the job."""

    value: str | None
    """As it would be written behind the equal sign; None where the process has nothing that could be set so."""
    reason: str = ""
    """Why it stands so, where it could not be set."""


Reader = Callable[[], KnobState]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """Something that is set in all processes of a job as they start, and read back once they train.

    `install` is called as soon as torch is there, with the value, or with None where the job is to be left as it is, and
    returns what reads the knob back. It wraps what the job will call, and lets the job have its way where it cannot.
    """

    name: str
    """As in the what-if grammar, brackets included."""
    is_term: bool
    """Whether there is a what-if term of this name, which this carries out."""
    example: str
    """A value."""
    sets: str
    """How it is set, for the documentation."""
    reads: str
    """How it is read back, for the documentation."""
    spelled: Callable[[str], str]
    """A value in the spelling in which it is read back. Raises ValueError with the reason for what is none."""
    install: Callable[[str | None], Reader]


def count(least: int) -> Callable[[str], str]:
    """Spells whole numbers from `least` on."""

    def spelled(text: str) -> str:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not (least <= number <= 1_000_000 and number.is_integer()):
            raise ValueError(f"{text!r} is not a whole number from {least} on")
        return f"{int(number)}"

    return spelled


def united(values: Collection[str], lacking: str) -> KnobState:
    """What several things that a knob is for say together; `lacking` says that there are none."""
    return KnobState(", ".join(sorted(set(values)))) if values else KnobState(None, lacking)
