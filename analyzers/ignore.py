"""Findings that a project ignores for now, with a reason and a last day. They are listed separately."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Annotated, Any

import msgspec

from esprof.analyzers.finding import Finding, Ignored
from esprof.analyzers.findings import PAGES, RULES
from esprof.core.errors import UsageError
from esprof.core.types import Rank
from esprof.run.run import RunWarning

TABLE = "[[tool.esprof.ignore]]"

_STOPPING = {page.id for rule in RULES if rule.stops_the_job for page in rule.pages}
_REMEDY = f"""Write:
    {TABLE}
    id = "ESP301"
    reason = "the link is upgraded in May"
    until = 2027-05-31
    ranks = [3]  # optional
  --no-ignore leaves the file unread."""


class Ignore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry: which findings, why, and the last day on which they are ignored."""

    id: str
    reason: str
    until: date
    ranks: Annotated[tuple[Annotated[Rank, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)] | None = None
    """Only findings that name no other ranks; None for findings of any ranks."""

    def covers(self, finding: Finding) -> bool:
        if finding.id != self.id:
            return False
        return self.ranks is None or (bool(finding.ranks) and set(finding.ranks) <= set(self.ranks))


@dataclass(frozen=True)
class Ignores:
    """What is ignored today, and what was until an earlier day."""

    entries: tuple[Ignore, ...] = ()
    expired: tuple[Ignore, ...] = ()

    def part(self, findings: Iterable[Finding]) -> tuple[list[Finding], tuple[Ignored, ...]]:
        """(those that count, those that are ignored), each in the order of `findings`."""
        counting, ignored = [], []
        for finding in findings:
            entry = next((entry for entry in self.entries if entry.covers(finding)), None)
            if entry is None:
                counting.append(finding)
            else:
                ignored.append(Ignored(finding=finding, reason=entry.reason, until=entry.until))
        return counting, tuple(ignored)

    @property
    def warnings(self) -> tuple[RunWarning, ...]:
        return tuple(
            RunWarning("ignore-expired", f"{one.id} was ignored until {one.until} ({one.reason}): it counts again")
            for one in self.expired
        )


NOTHING = Ignores()


def parse(entries: object, path: Path, today: date) -> Ignores:
    """The entries of a configuration file; `path` is for the message. Raises UsageError where one makes no sense."""
    if not isinstance(entries, list):
        raise UsageError(f"ignore is no list of tables, each {TABLE}", path=path, remedy=_REMEDY)
    found = [_entry(number, entry, path) for number, entry in enumerate(entries, 1)]
    return Ignores(
        entries=tuple(entry for entry in found if entry.until >= today),
        expired=tuple(entry for entry in found if entry.until < today),
    )


def _entry(number: int, entry: Any, path: Path) -> Ignore:
    where = f"entry {number} of {TABLE}"
    try:
        found = msgspec.convert(entry, Ignore)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where} makes no sense: {error}", path=path, remedy=_REMEDY) from error
    if not found.reason.strip():
        raise UsageError(f"{where} gives no reason", path=path, remedy=_REMEDY)
    if found.id not in PAGES:
        known = ", ".join(one for one in PAGES if one not in _STOPPING)
        raise UsageError(f"{where}: there is no finding {found.id!r}", path=path, remedy=f"Findings: {known}.")
    if found.id in _STOPPING:
        raise UsageError(
            f"{where}: {found.id} cannot be ignored: it stops the job ({PAGES[found.id].title})",
            path=path,
            remedy="Take the entry out.",
        )
    return found


def told(ignored: Iterable[Ignored]) -> str:
    """What a verdict says of them behind its own sentence; nothing where there are none."""
    ids = dict.fromkeys(one.finding.id for one in ignored)
    return f" Ignored, as was asked: {', '.join(ids)}." if ids else ""
