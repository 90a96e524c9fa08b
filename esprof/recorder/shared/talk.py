"""What the recorder says to the people who run the job."""

import sys
from contextlib import suppress


def say(message: str) -> None:
    """A line on stderr, if it takes one: it may be closed, or on the disk that is full."""
    if sys.stderr is not None:
        with suppress(Exception):
            print(f"esprof: {message}", file=sys.stderr, flush=True)
