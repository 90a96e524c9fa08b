"""Make names from a trace safe to print in a terminal, and guess what a mistyped name meant."""

import difflib
import re
from collections.abc import Iterable

LONGEST_NAME = 1_000
"""Longest name of a file, function or operation in a sentence, in characters: longer than real names are."""

_UNSAFE = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]")


def printable(text: str, limit: int = 120) -> str:
    """Return `text` with control and direction characters (such as ANSI escapes) escaped, cut to `limit` characters.

    Lone surrogates, as in file names that are not UTF-8, are escaped too: no stream can write them.
    """
    shown = _UNSAFE.sub(lambda match: f"\\x{ord(match.group()):02x}", text)
    return shown if len(shown) <= limit else shown[: limit - 1] + "…"


def printable_json(text: str) -> str:
    """Return the JSON `text`, equal as data, with the same characters escaped: the format itself escapes ASCII ones only."""
    return _UNSAFE.sub(lambda match: match.group() if match.group() == "\n" else f"\\u{ord(match.group()):04x}", text)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The known name that `name` most resembles, None if it resembles none: `networx` -> `network`."""
    return next(iter(difflib.get_close_matches(name.lower(), list(known), n=1)), None)
