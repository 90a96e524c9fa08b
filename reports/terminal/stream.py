"""What a stream can show. It imports no library, unlike `screen`: an answer that is stored needs none."""

import os
from typing import TextIO

DEFAULT_COLUMNS = 100
_MIN_COLUMNS = 40
"""Narrower screens cannot hold a verdict."""
_MAX_COLUMNS = 1_000
_MAX_READABLE_COLUMNS = 120


def columns_of(stream: TextIO | None) -> int:
    """The value of COLUMNS if set; otherwise the width of the terminal, at most 120 for readability."""
    try:
        asked = int(os.environ.get("COLUMNS", ""))
    except ValueError:
        asked = 0
    if asked > 0:
        return min(max(asked, _MIN_COLUMNS), _MAX_COLUMNS)
    try:
        return (
            min(os.get_terminal_size(stream.fileno()).columns, _MAX_READABLE_COLUMNS)
            if stream is not None
            else DEFAULT_COLUMNS
        )
    except OSError:
        return DEFAULT_COLUMNS


def takes_colour(stream: TextIO | None) -> bool:
    """Whether `stream`, None for a file, is a terminal that is not dumb, and NO_COLOR is not set."""
    on_terminal = stream is not None and stream.isatty()
    return on_terminal and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
