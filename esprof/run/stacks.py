"""Stacks of Python frames as text, as `schema.SAMPLES` has them, and the place in the job's own code that each tells."""

import re
from typing import NamedTuple

from esprof.core.types import NS_PER_US, Ns

MIN_SILENCE_NS: Ns = 50 * NS_PER_US
"""Shortest time without an operation, ns, of which it is told what Python did: shorter ones are ordinary Python between
two operations."""

MIN_SILENCE_SAMPLED_NS: Ns = 1_000 * NS_PER_US
"""Shortest silence, ns, of which each is sampled in windows with stacks. A shorter one is told by the sample in it, or by
the one that comes within as long behind it; those of which no sample tells are taken to be like the others of their name."""

_FRAME = re.compile(r"(?P<file>.*)\(\d+\): (?P<function>.*)")
_LIBRARY = re.compile(r"^(python\d+\.\d+/|<)")
"""How the frames of Python and of installed packages begin."""


class SourceLocation(NamedTuple):
    """Where a thread was: the innermost line of the job's own code, and what that led to."""

    frame: str
    """As `file(line): function`; the innermost line of all where none is the job's own."""
    call: str | None
    """The innermost line, if that is another one."""


def location_of(stack: str) -> SourceLocation:
    """The place of a stack, of which the frames come outermost first, one a line."""
    frames = stack.split("\n")
    own = next((frame for frame in reversed(frames) if is_own(frame)), frames[-1])
    return SourceLocation(own, None if own == frames[-1] else frames[-1])


def is_own(frame: str) -> bool:
    """Whether a frame is of the job's own code."""
    return not _LIBRARY.match(frame)


def functions_of(stack: str) -> set[str]:
    """The functions on a stack, as `file: function`, whatever lines they are at."""
    return {f"{match['file']}: {match['function']}" for match in map(_FRAME.fullmatch, stack.split("\n")) if match}
