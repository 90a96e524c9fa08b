"""Names that came from a trace are data: what makes them safe to show in a terminal."""

import re

LONGEST_NAME = 1_000
"""Characters that a file, a function or an operation is shown with in a sentence: more than any has that people gave."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def printable(text: str, limit: int = 120) -> str:
    """`text` with control and direction characters (ANSI escapes among them) made visible, cut to `limit`.

    Lone surrogates, as in file names that are not UTF-8, are made visible, too: no stream could write them.
    """
    shown = _UNSAFE.sub(lambda match: f"\\x{ord(match.group()):02x}", text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"
