"""All contents of a Run as one value, so that a Run can be changed and written anew."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import msgspec

from esprof.core.types import Rank
from esprof.run.directory import SCHEMAS, write_flight, write_meta, write_probes, write_small_table
from esprof.run.flight.log import FlightLog
from esprof.run.logs import HISTORY, ROUNDS, JobEvent, Round
from esprof.run.probes import Probes
from esprof.run.run import Run, RunMeta, WarningCode
from esprof.run.schema import EVENTS, Table, table

SIDE_TABLES = tuple(name for name in SCHEMAS if name not in ("events", "steps"))


@dataclass(frozen=True)
class RunContents:
    """What a Run directory holds, except files of running jobs, plans and the ledger of `verify`."""

    meta: RunMeta
    tables: Mapping[tuple[str, Rank], Table] = field(repr=False)
    """Tables by name and rank; every rank has `events`, maybe empty. Absent side tables are left out."""
    flights: Mapping[Rank, FlightLog] = field(default_factory=dict, repr=False)
    probes: Probes | None = field(default=None, repr=False)
    history: tuple[JobEvent, ...] = field(default=(), repr=False)
    rounds: tuple[Round, ...] = field(default=(), repr=False)

    @classmethod
    def of(cls, run: Run) -> "RunContents":
        """Raises InputError if a table is broken."""
        ranks = [meta.rank for meta in run.meta.ranks]
        tables = {
            (name, rank): rows
            for rank in ranks
            for name in SCHEMAS
            if (rows := run.recorded(name, rank)) is not None and len(rows)
        }
        for rank in ranks:
            events = tables.setdefault(("events", rank), table({}, EVENTS))
            if len(events):  # Of a trace, they follow from the events, which may lose the annotations of steps.
                tables["steps", rank] = run.steps(rank)
        # Broken tables are not part of it; other findings of the reader are, as they say what its steps are.
        warnings = tuple(one for one in run.warnings if one.code != WarningCode.TABLE_UNREADABLE)
        return cls(
            msgspec.structs.replace(run.meta, warnings=warnings),
            tables,
            {rank: run.flight(rank) for rank in ranks if run.has_flight(rank)},
            run.probes,
            run.history,
            run.rounds,
        )

    def run(self) -> Run:
        """The Run with these contents, in memory."""
        return Run(
            self.meta,
            lambda name, rank: self.tables.get((name, rank)),
            flight=self.flights.get,
            probes=self.probes,
            history=self.history,
            rounds=self.rounds,
        )

    def write(self, folder: Path) -> None:
        """Write a Run directory. Raises OutputError."""
        for (name, rank), rows in self.tables.items():
            write_small_table(folder, name, rank, rows)
        for rank, log in self.flights.items():
            write_flight(folder, rank, log)
        if self.probes is not None:
            write_probes(folder, self.probes)
        for event in self.history:
            HISTORY.append(folder, event)
        for round_ in self.rounds:
            ROUNDS.append(folder, round_)
        write_meta(folder, self.meta)

    def with_tables(self, name: str, change: Callable[[Rank, Table], Table]) -> "RunContents":
        """The same with each table `name` changed; `meta` keeps count of the events."""
        changed = {rank: change(rank, rows) for (of, rank), rows in self.tables.items() if of == name}
        contents = replace(self, tables={**self.tables, **{(name, rank): rows for rank, rows in changed.items()}})
        if name != "events":
            return contents
        # Ranks whose events were left out before stay without them.
        ranks = (
            msgspec.structs.replace(one, events=len(changed[one.rank])) if one.events else one
            for one in self.meta.ranks
        )
        return replace(contents, meta=msgspec.structs.replace(self.meta, ranks=tuple(ranks)))

    @property
    def events(self) -> int:
        """Number of events of all ranks."""
        return sum(len(rows) for (name, _), rows in self.tables.items() if name == "events")

    @property
    def rows(self) -> int:
        """Number of rows of all tables of all ranks."""
        return sum(map(len, self.tables.values()))
