"""Is a run whole? Runs on disk with a part missing, cut short or overwritten; and what is declined on them."""

import json

import msgspec
import pytest
from click.testing import CliRunner

from esprof import load
from esprof.analyzers.validity.validate import examples, validate
from esprof.core.errors import InputError
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.terms import TERMS
from esprof.reports.commands import validate as verb
from esprof.reports.terminal.validity import draw_validation
from esprof.run.files import flight_path, table_path
from esprof.run.flight.log import FlightLog
from esprof.run.run import RankMeta, RunWarning
from tests.cases.graph import gloo, op, run_of, step
from tests.cases.run_directory import write_run

MS = 1_000.0


def rank_rows(late_ms):
    rows = []
    for number in range(6):
        begin = number * 50 * MS
        arrive = begin + (30 + late_ms) * MS
        rows += [
            step(number, begin, begin + 50 * MS),
            op("aten::linear", begin, (30 + late_ms) * MS),
            *gloo(arrive - 5, arrive, begin + 44 * MS),
            op("Optimizer.step", begin + 45 * MS, 5 * MS),
        ]
    return rows


@pytest.fixture
def saved(tmp_path):
    """A whole Run of three ranks."""
    run = run_of({rank: rank_rows(rank) for rank in range(3)})
    tables = {("events", rank): run.events(rank) for rank in run.ranks}
    tables |= {("steps", rank): run.steps(rank) for rank in run.ranks}
    path = tmp_path / "run"
    write_run(path, run.meta, tables, {0: FlightLog(ended=True)})
    return path


def faults(found):
    return [(fault.code, fault.ranks) for fault in found.faults]


def test_a_whole_run(saved):
    found = validate(load(saved))
    assert found.whole
    assert found.faults == ()
    assert found.replay.answered
    assert [rank.parts["events"].state for rank in found.ranks] == ["present"] * 3
    assert found.ranks[0].parts["events"].rows == len(rank_rows(0))
    assert [rank.parts["flight"].state for rank in found.ranks] == ["present", "absent", "absent"]
    assert "This run is whole: 3 ranks" in draw_validation(found)


def test_every_what_if_is_answered_or_declined_with_its_reason(saved):
    found = validate(load(saved))
    declined = {spec: one.reason for one in found.declined for spec in one.terms}
    assert {*found.answered, *declined} == set(examples())
    assert "cpu=2x" in found.answered
    assert all(declined.values())
    assert {term.kind.name for spec in examples() for term in parse(spec)} == TERMS.keys() - {"assign"}


def test_what_was_not_recorded_is_listed_with_what_needs_it(saved):
    lacks = {one.data: one for one in validate(load(saved)).unrecorded}
    assert {"input shapes", "DataLoaders", "a probe", "steps without the profiler"} <= set(lacks)
    assert "flight records" not in lacks
    assert "bucket_mb=" in lacks["input shapes"].needed_for
    assert "--shapes" in lacks["input shapes"].remedy


def test_a_deleted_file_is_a_missing_rank(saved):
    table_path(saved, "events", 1).unlink()
    found = validate(load(saved))
    assert not found.whole
    assert faults(found) == [("rank-unreadable", (1,))]
    assert found.missing_ranks == (1,)
    assert found.replay.answered


@pytest.mark.parametrize("name", ["events", "steps"])
def test_damage_inside_a_file_with_a_sound_footer_is_found(saved, name):
    file = table_path(saved, name, 2)
    content = bytearray(file.read_bytes())
    content[4:60] = bytes(56)
    file.write_bytes(content)
    found = validate(load(saved))
    assert faults(found) == [("part-broken", (2,))]
    assert found.ranks[2].parts[name].state == "broken"
    assert f"its {name} cannot be read" in draw_validation(found)


def test_a_rank_that_the_job_had_and_nothing_recorded_is_named(saved):
    run = load(saved)
    meta = msgspec.structs.replace(run.meta, world_size=4)
    write_run(saved, meta, {})
    found = validate(load(saved))
    assert (found.whole, found.missing_ranks) == (False, (3,))
    assert "rank 3" in found.faults[-1].message


def test_a_broken_flight_log_is_a_fault(saved):
    flight_path(saved, 0).write_text("{")
    assert faults(validate(load(saved))) == [("part-broken", (0,))]


def test_drops_and_ends_are_shown_and_are_no_fault(saved):
    run = load(saved)
    lossy = RankMeta(rank=1, events=10, dropped_events=7, windows_lost=1, ended=False)
    ranks = tuple(lossy if rank.rank == 1 else rank for rank in run.meta.ranks)
    write_run(saved, msgspec.structs.replace(run.meta, ranks=ranks), {})
    found = validate(load(saved))
    assert found.whole
    text = draw_validation(found)
    assert "rank 1: 7 events dropped, 1 window lost, its process did not end normally" in text


def test_a_run_without_a_common_step_is_declined_by_replay(tmp_path):
    run = run_of({0: rank_rows(0)[:5], 1: rank_rows(1)[-5:]})
    write_run(tmp_path / "run", run.meta, {("events", rank): run.events(rank) for rank in run.ranks})
    found = validate(load(tmp_path / "run"))
    assert found.whole
    assert not found.replay.answered
    assert "no recorded step in common" in draw_validation(found)


def test_a_thousand_ranks_fit_a_few_screens(saved):
    found = validate(load(saved))
    ranks = tuple(msgspec.structs.replace(found.ranks[0], rank=rank, dropped_events=1) for rank in range(1_000))
    clocks = tuple(msgspec.structs.replace(found.clocks[0], residual_p99_us=float(rank)) for rank in range(1_000))
    faults = tuple(RunWarning("part-broken", "broken", (rank,)) for rank in range(1_000))
    text = draw_validation(msgspec.structs.replace(found, ranks=ranks, clocks=clocks, faults=faults))
    assert text.count("\n") < 120
    assert "16 of 1,000 shown; `esprof validate --json` lists all" in text
    assert "ends of collectives differ by at most 1.00 ms" in text


def exit_code(*arguments):
    words = [str(one) for one in arguments]
    return CliRunner().invoke(verb.command, words, catch_exceptions=False, standalone_mode=False).return_value


def test_exit_codes_tell_whole_broken_and_unreadable_apart(saved, tmp_path):
    assert exit_code(saved) == 0
    table_path(saved, "events", 1).unlink()
    assert exit_code(saved) == 3
    with pytest.raises(InputError):
        exit_code(tmp_path / "nothing")


def test_json_begins_with_its_schema(saved):
    said = CliRunner().invoke(verb.command, [str(saved), "--json"], catch_exceptions=False)
    answer = json.loads(said.stdout)
    assert next(iter(answer.items())) == ("schema", "esprof.validate/1")
    assert answer["whole"] is True


def test_a_trace_is_validated_as_well(tmp_path):
    rows = [
        {"ph": "X", "cat": row.cat, "name": row.name, "pid": row.pid, "tid": row.tid, "ts": row.ts, "dur": row.dur}
        for row in rank_rows(0)
    ]
    for rank in (0, 2):
        content = {"distributedInfo": {"rank": rank, "world_size": 3}, "traceEvents": rows}
        (tmp_path / f"rank{rank}.json").write_text(json.dumps(content))
    (tmp_path / "rank1.json").write_text("{")
    found = validate(load(tmp_path))
    assert found.source == "kineto"
    assert {code for code, _ in faults(found)} == {"trace-unreadable", "rank-missing"}
    assert found.missing_ranks == (1,)
