"""Source locations in the job's own code, from stacks as `schema.SAMPLES` stores them."""

import re
from typing import NamedTuple

from esprof.core.types import NS_PER_US, Ns

MIN_SILENCE_NS: Ns = 50 * NS_PER_US
"""Shortest gap between operations that is attributed to Python code, ns: shorter ones are ordinary interpreter overhead."""

MIN_SILENCE_SAMPLED_NS: Ns = 1_000 * NS_PER_US
"""Gaps of at least this length are all sampled in windows with stacks, ns. A shorter one is attributed by a sample in it or
one that follows within this time; without a sample it is treated like other gaps of its name."""

_FRAME = re.compile(r"(?P<file>.*)\(\d+\): (?P<function>.*)")
_LIBRARY = re.compile(r"^(python\d+\.\d+/|<)")
"""Prefix of frames of Python and of installed packages."""


class SourceLocation(NamedTuple):
    """Source location of a thread: the innermost line of the job's own code, and the innermost line of all."""

    frame: str
    """As `file(line): function`; the innermost line of all if none belongs to the job."""
    call: str | None
    """The innermost line of all; None if it is `frame`."""


def location_of(stack: str) -> SourceLocation:
    """Return the source location of a stack of frames, outermost first, one per line."""
    frames = stack.split("\n")
    own = next((frame for frame in reversed(frames) if is_own(frame)), frames[-1])
    return SourceLocation(own, None if own == frames[-1] else frames[-1])


def is_own(frame: str) -> bool:
    """Whether a frame belongs to the job's own code."""
    return not _LIBRARY.match(frame)


def functions_of(stack: str) -> set[str]:
    """Functions on a stack, as `file: function`, without lines."""
    return {f"{match['file']}: {match['function']}" for match in map(_FRAME.fullmatch, stack.split("\n")) if match}
