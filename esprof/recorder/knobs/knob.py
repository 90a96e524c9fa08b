"""A knob: how it is set and read back in a process of the job."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import NamedTuple


class KnobState(NamedTuple):
    """Value of a knob in a process of the job."""

    value: str | None
    """Value as written after the equal sign; None if the process has nothing that the knob could set."""
    reason: str = ""
    """Why the wanted value could not be set; empty if it was."""


Reader = Callable[[], KnobState]


@dataclass(frozen=True, kw_only=True)
class Knob:
    """A setting that is set in all processes of a job at their start, and read back during training.

    `install` is called once torch is imported, with the value, or with None to only read the knob. It wraps functions of
    torch that the job will call, falls back to the job's own arguments if the value is refused, and returns the reader.
    """

    name: str
    """Name as in the what-if grammar, including brackets."""
    is_term: bool
    """Whether a what-if term of this name exists, which this knob applies to the job."""
    example: str
    """A valid value."""
    sets: str
    """How it is set, for the documentation."""
    reads: str
    """How it is read back, for the documentation."""
    spelled: Callable[[str], str]
    """Convert a value to the spelling in which it is read back. Raises ValueError with the reason if it is invalid."""
    install: Callable[[str | None], Reader]


def count(least: int) -> Callable[[str], str]:
    """Return a `spelled` for whole numbers from `least` on."""

    def spelled(text: str) -> str:
        try:
            number = float(text)
        except ValueError:
            number = -1.0
        if not (least <= number <= 1_000_000 and number.is_integer()):
            raise ValueError(f"{text!r} is not a whole number from {least} on")
        return f"{int(number)}"

    return spelled


def combined(values: Collection[str], lacking: str) -> KnobState:
    """State of a knob from the distinct `values` of several objects; without values, None with the reason `lacking`."""
    return KnobState(", ".join(sorted(set(values)))) if values else KnobState(None, lacking)
