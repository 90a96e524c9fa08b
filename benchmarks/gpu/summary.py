"""The figures as a table."""

from collections.abc import Iterable, Iterator
from typing import Any

SHOWN_CONTEXT = ("job", "change", "ranks", "codec", "way", "memory", "mb", "ests", "processes", "kind")
"""Keys of the context that are shown, since figures of the same name differ by them."""


def summary(lines: Iterable[dict[str, Any]]) -> str:
    """A line for each figure, by part; parts that failed say why."""
    return "\n".join(_rows(list(lines))) + "\n"


def _rows(lines: list[dict[str, Any]]) -> Iterator[str]:
    for part in dict.fromkeys(line["part"] for line in lines):
        yield f"\n{part}"
        for line in lines:
            if line["part"] == part:
                yield f"  {_failure(line) if 'error' in line else _figure(line)}"


def _failure(line: dict[str, Any]) -> str:
    last = line["tail"][-1] if line["tail"] else "nothing was said"
    return f"FAILED: {line['error']}: {last}"


def _figure(line: dict[str, Any]) -> str:
    about = ", ".join(f"{key} {line['context'][key]}" for key in SHOWN_CONTEXT if key in line["context"])
    spread = line["spread"]
    interval = f"  ({spread['low']:g} to {spread['high']:g})" if spread else ""
    return f"{line['name']:<32} {line['value']:>10g} {line['unit']}{interval}{f'  [{about}]' if about else ''}"
