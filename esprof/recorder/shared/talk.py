"""What the recorder says to the people who run the job."""

import sys
from contextlib import suppress


def say(message: str) -> None:
    """Print a line on stderr, if that works: stderr may be closed, or on a disk that is full."""
    if sys.stderr is not None:
        with suppress(Exception):
            print(f"esprof: {message}", file=sys.stderr, flush=True)
