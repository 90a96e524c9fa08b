"""All contents of a Run as a value."""

import msgspec
import pytest

from esprof.core.output import OutputError, atomic_folder
from esprof.run.directory import claim_run, read_run
from esprof.run.flight.log import FlightLog
from esprof.run.run import Run, RunWarning, WarningCode
from esprof.run.sharing.contents import RunContents
from tests.cases.exported import cpu_run


def test_a_written_run_has_the_same_contents(tmp_path):
    run = cpu_run()
    contents = RunContents.of(run)
    contents.write(tmp_path / "run")
    again = RunContents.of(read_run(tmp_path / "run"))
    assert again.meta == contents.meta
    assert (
        again.tables.keys() == contents.tables.keys() == {(n, r) for n in ("events", "steps", "memory") for r in (0, 1)}
    )
    for key, rows in contents.tables.items():
        assert again.tables[key].arrow.to_pylist() == rows.arrow.to_pylist()
    assert contents.run().events(0) is run.events(0)


def test_what_the_reader_found_stays_but_for_broken_tables():
    run = cpu_run()
    kept, broken = RunWarning(WarningCode.STEPS_BY_BLOCK, "a"), RunWarning(WarningCode.TABLE_UNREADABLE, "b")
    run = Run(run.meta, run.recorded, warnings=(kept, broken), flight={1: FlightLog()}.get)
    contents = RunContents.of(run)
    assert contents.meta.warnings == (kept,)
    assert contents.run().unit == "block"
    assert set(contents.flights) == {1}


def test_counts_of_events_follow_and_ranks_without_them_stay_so():
    contents = RunContents.of(cpu_run())
    none = msgspec.structs.replace(contents.meta.ranks[1], events=0)
    contents = RunContents(
        msgspec.structs.replace(contents.meta, ranks=(contents.meta.ranks[0], none)), contents.tables
    )
    fewer = contents.with_tables("events", lambda rank, rows: rows.where(rows.ints("step") == 2))
    assert [rank.events for rank in fewer.meta.ranks] == [len(fewer.tables["events", 0]), 0]
    assert fewer.events < contents.events


def write_half(contents, out):
    with atomic_folder(out, private=True) as folder:
        contents.write(folder)
        raise RuntimeError


def test_nothing_half_written_stays_and_only_a_run_is_replaced(tmp_path):
    out = tmp_path / "run"
    contents = RunContents.of(cpu_run())
    with pytest.raises(RuntimeError):
        write_half(contents, out)
    assert list(tmp_path.iterdir()) == []
    with atomic_folder(out, private=True) as folder:
        contents.write(folder)
    with pytest.raises(OutputError, match="already exists"):
        claim_run(out, force=False)
    claim_run(out, force=True)
    (tmp_path / "folder").mkdir()
    with pytest.raises(OutputError, match="is not a Run"):
        claim_run(tmp_path / "folder", force=True)
    assert list(tmp_path.glob(".*")) == []
