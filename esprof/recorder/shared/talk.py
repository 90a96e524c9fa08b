"""Messages of the recorder to the user of the job."""

import sys
from contextlib import suppress


def say(message: str) -> None:
    """Print a line on stderr. Errors are ignored: stderr may be closed, or on a full disk."""
    if sys.stderr is not None:
        with suppress(Exception):
            print(f"esprof: {message}", file=sys.stderr, flush=True)
