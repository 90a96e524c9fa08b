"""The what-if grammar: one scenario is comma-separated terms `TARGET=VALUE`, all of which hold at once."""

import re
from dataclasses import dataclass

from esprof.errors import UsageError

_SPEEDS = ("gpu", "cpu", "network", "storage")
_WORDS = {"straggler": "fix", "overlap": "perfect"}
KNOWN = (
    "gpu=2x", "cpu=2x", "network=2x", "rank3.gpu=1.5x", "rank3.cpu=0.5x", "device[NAME].gpu=2x", "kernel[REGEX]=2x",
    "collective[REGEX]=2x", "straggler=fix", "overlap=perfect", "data=0", "loader.workers=4", "storage=2x",
    "cache=0.5", "bucket_mb=50", "compress=powersgd:4", "assign=plan.json",
)  # fmt: skip
_LEAST, _MOST = 1e-3, 1e6
_SCOPED = re.compile(r"^(?:rank(?P<rank>\d{1,9})|device\[(?P<device>.+)\])\.(?P<what>gpu|cpu)$")
_PATTERN = re.compile(r"^(?P<what>kernel|collective)\[(?P<pattern>.+)\]$")


@dataclass(frozen=True)
class Term:
    """One term. `target` is its kind (`gpu`, `kernel`, `straggler`, …); a speed-up is in `factor` (2x is 2.0)."""

    text: str
    target: str
    factor: float = 1.0
    rank: int | None = None
    device: str | None = None
    pattern: re.Pattern[str] | None = None


def parse(spec: str) -> tuple[Term, ...]:
    """The terms of one scenario. Raises UsageError for what is no term, with the known ones."""
    terms = tuple(_term(text.strip()) for text in _split(spec))
    if not terms:
        raise _unknown(spec)
    return terms


def _split(spec: str) -> list[str]:
    """Split at commas outside brackets: those inside belong to the term."""
    parts, depth, begin = [], 0, 0
    for at, character in enumerate(spec):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            parts.append(spec[begin:at])
            begin = at + 1
    return [part for part in [*parts, spec[begin:]] if part.strip()]


def _term(text: str) -> Term:
    # The last "=" outside the brackets: a pattern may hold one.
    at = text.rfind("=", text.rfind("]") + 1)
    if at < 0:
        raise _unknown(text)
    target, value = text[:at].strip(), text[at + 1 :].strip()
    if scoped := _SCOPED.match(target):
        rank = int(scoped["rank"]) if scoped["rank"] else None
        return Term(text, scoped["what"], _factor(text, value), rank=rank, device=scoped["device"])
    if by_name := _PATTERN.match(target):
        return Term(text, by_name["what"], _factor(text, value), pattern=_regex(text, by_name["pattern"]))
    if target in _SPEEDS:
        return Term(text, target, _factor(text, value))
    if target in _WORDS:
        if value != _WORDS[target]:
            raise UsageError(
                f"{text!r}: {target} can only be {_WORDS[target]!r}", remedy=f"Write {target}={_WORDS[target]}."
            )
        return Term(text, target)
    if target == "data":
        if value not in ("0", "0.0"):
            raise UsageError(
                f"{text!r}: data can only be 0, a loader that never makes a rank wait", remedy="Write data=0."
            )
        return Term(text, target)
    if target in ("loader.workers", "cache", "bucket_mb"):
        return Term(text, target, _positive(text, value))
    if target in ("compress", "assign") and value:
        return Term(text, target)
    raise _unknown(text)


def _factor(text: str, value: str) -> float:
    """`2x` or `2`: how many times as fast."""
    return _positive(text, value[:-1] if value.lower().endswith("x") else value)


def _positive(text: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = 0.0
    if not _LEAST <= number <= _MOST:
        raise UsageError(
            f"{text!r}: {value!r} is not a number from {_LEAST:g} to {_MOST:g}",
            remedy="A speed-up is written 2x, or 0.5x for half as fast.",
        )
    return number


def _regex(text: str, pattern: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)
    except (re.error, OverflowError, RecursionError) as error:
        raise UsageError(f"{text!r}: {pattern!r} is not a regular expression ({error})") from error


def _unknown(text: str) -> UsageError:
    return UsageError(f"{text!r} is not a what-if term", remedy=f"Known terms: {', '.join(KNOWN)}.")
