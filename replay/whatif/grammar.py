"""The what-if grammar: one scenario is comma-separated terms `[SCOPE.]NAME[ARGUMENT]=VALUE`, all of which hold at once.

A scope is one rank or several, `rank3.` or `rank0-3+6.`, or `device[NAME].`.
"""

import re

from esprof.core.errors import UsageError
from esprof.core.text import nearest
from esprof.core.types import Rank
from esprof.replay.whatif.term import Term
from esprof.replay.whatif.terms import TERMS
from esprof.run.groups import MAX_RANKS

_RANKS = r"\d{1,7}(?:-\d{1,7})?"
_TARGET = re.compile(
    rf"(?:(?:rank(?P<ranks>{_RANKS}(?:\+{_RANKS})*)|device\[(?P<device>.+)\])\.)?"
    r"(?P<name>[a-z_.]+)(?:\[(?P<argument>.+)\])?"
)


def parse(spec: str) -> tuple[Term, ...]:
    """The terms of one scenario, each once. Raises UsageError for what is no term, and for two values of one target."""
    found: dict[str, Term] = {}
    for term in (_term(text.strip()) for text in _split(spec)):
        other = found.setdefault(term.target, term)
        if other.value != term.value:
            reason = f"{other.text!r} and {term.text!r} exclude each other in one scenario"
            raise UsageError(reason, remedy="Write one of them, or a --what-if for each.")
    if not found:
        raise _unknown(spec)
    return tuple(found.values())


def known() -> tuple[str, ...]:
    """An example of each way to write a term."""
    return tuple(example for kind in TERMS.values() for example in kind.examples)


def literal(text: str) -> str:
    """A regular expression that finds `text`, for the argument of a term. Brackets and commas would end the term."""
    return "".join(f"\\x{ord(one):02x}" if one in "[]," else one if one == " " else re.escape(one) for one in text)


def _split(spec: str) -> list[str]:
    """Split at commas outside brackets: those inside belong to the term."""
    pieces, depth, begin = [], 0, 0
    for at, character in enumerate(spec):
        depth += (character == "[") - (character == "]")
        if character == "," and depth == 0:
            pieces.append(spec[begin:at])
            begin = at + 1
    return [piece for piece in [*pieces, spec[begin:]] if piece.strip()]


def _term(text: str) -> Term:
    """The term that this text spells. Raises UsageError, with the known terms, where it is none."""
    # The last "=" outside the brackets: a pattern may hold one.
    at = text.rfind("=", text.rfind("]") + 1)
    target = _TARGET.fullmatch(text[:at].strip()) if at >= 0 else None
    kind = TERMS.get(target["name"]) if target else None
    if target is None or kind is None:
        raise _unknown(text)
    is_scoped = target["ranks"] is not None or target["device"] is not None
    has_argument = target["argument"] is not None
    lacks_argument = kind.argument is not None and not kind.argument_is_optional and not has_argument
    if (is_scoped and not kind.scoped) or (has_argument and kind.argument is None) or lacks_argument:
        raise UsageError(f"{text!r} is not a what-if term", remedy=f"Write {' or '.join(kind.examples)}.")
    try:
        return Term(
            text=text,
            kind=kind,
            value=kind.value(text[at + 1 :].strip()),
            argument=kind.argument(target["argument"]) if kind.argument and has_argument else None,
            only=_ranks(target["ranks"]) if target["ranks"] else (),
            device=target["device"],
        )
    except UsageError as error:
        raise UsageError(f"{text!r}: {error.reason}", remedy=error.remedy) from error


def _ranks(text: str) -> tuple[Rank, ...]:
    """The ranks of `0-3+6`, ascending."""
    found: set[Rank] = set()
    for piece in text.split("+"):
        first, _, last = piece.partition("-")
        found.update(range(int(first), min(int(last or first), MAX_RANKS) + 1))
    if not found:
        raise UsageError(f"{text!r} names no rank", remedy="Ranks are written rank3, rank0-3 or rank0-3+6.")
    return tuple(sorted(found))


def _unknown(text: str) -> UsageError:
    """The error for what is no term: with the term that its name resembles, or else with all."""
    name = text.partition("=")[0].partition("[")[0].strip()
    close = nearest(name, TERMS) or nearest(name.rpartition(".")[2], TERMS)
    if close is None:
        return UsageError(f"{text!r} is not a what-if term", remedy=f"Known terms: {', '.join(known())}.")
    return UsageError(f"{text!r} is not a what-if term", remedy=f"Did you mean {' or '.join(TERMS[close].examples)}?")
