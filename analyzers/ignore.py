"""Findings that a project's configuration ignores, with a reason and a last day. They are listed separately."""

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
  With --no-ignore, esprof does not read the file."""


class Ignore(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One entry: which findings to ignore, why, and until which day (inclusive)."""

    id: str
    reason: str
    until: date
    ranks: Annotated[tuple[Annotated[Rank, msgspec.Meta(ge=0)], ...], msgspec.Meta(min_length=1)] | None = None
    """Only findings whose ranks are all in this list; None for findings of any ranks."""

    def covers(self, finding: Finding) -> bool:
        if finding.id != self.id:
            return False
        return self.ranks is None or (bool(finding.ranks) and set(finding.ranks) <= set(self.ranks))


@dataclass(frozen=True)
class Ignores:
    """Entries in force today, and expired ones."""

    entries: tuple[Ignore, ...] = ()
    expired: tuple[Ignore, ...] = ()

    def split(self, findings: Iterable[Finding]) -> tuple[list[Finding], tuple[Ignored, ...]]:
        """(active findings, ignored findings), each in the order of `findings`."""
        active, ignored = [], []
        for finding in findings:
            entry = next((entry for entry in self.entries if entry.covers(finding)), None)
            if entry is None:
                active.append(finding)
            else:
                ignored.append(Ignored(finding=finding, reason=entry.reason, until=entry.until))
        return active, tuple(ignored)

    @property
    def warnings(self) -> tuple[RunWarning, ...]:
        return tuple(
            RunWarning("ignore-expired", f"{one.id} was ignored until {one.until} ({one.reason}) and is reported again")
            for one in self.expired
        )


NOTHING = Ignores()


def parse(entries: object, path: Path, today: date) -> Ignores:
    """Parse the entries of the configuration file `path`. Raises UsageError if one is invalid."""
    if not isinstance(entries, list):
        raise UsageError(f"ignore is not a list of tables {TABLE}", path=path, remedy=_REMEDY)
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
        raise UsageError(f"{where} is invalid: {error}", path=path, remedy=_REMEDY) from error
    if not found.reason.strip():
        raise UsageError(f"{where} has an empty reason", path=path, remedy=_REMEDY)
    if found.id not in PAGES:
        known = ", ".join(one for one in PAGES if one not in _STOPPING)
        raise UsageError(f"{where}: there is no finding {found.id!r}", path=path, remedy=f"Findings: {known}.")
    if found.id in _STOPPING:
        raise UsageError(
            f"{where}: {found.id} cannot be ignored because it stops the job ({PAGES[found.id].title})",
            path=path,
            remedy="Remove the entry.",
        )
    return found


def ignored_note(ignored: Iterable[Ignored]) -> str:
    """The sentence on ignored findings at the end of a verdict; empty if there are none."""
    ids = dict.fromkeys(one.finding.id for one in ignored)
    return f" Ignored by configuration: {', '.join(ids)}." if ids else ""
