"""Tables of operations as a Run: against jobs whose times are known, and those of the jobs that they would become."""

from datetime import UTC, datetime, timedelta

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.core.errors import InputError
from esprof.replay import answer
from tests.cases.operation_tables import SINCE, rows_of_a_job, rows_of_a_pipeline, write_table


@pytest.fixture
def table(tmp_path):
    """Write rows as a table and open it."""

    def table(rows, name="job.parquet"):
        return load(write_table(tmp_path / name, rows))

    return table


def without(rows, *columns):
    return [{name: value for name, value in row.items() if name not in columns} for row in rows]


def changed(rows, **columns):
    """The rows with these columns of the first one changed."""
    return [rows[0] | columns, *rows[1:]]


def of_times(rows, time):
    """The rows with their times as `time` makes them of ns."""
    return [row | {"start": time(row["start"]), "end": time(row["end"])} for row in rows]


def warned(run):
    return {warning.code for warning in run.warnings}


def step_us(run):
    return answer(run).step_us


def test_a_rank_that_computes_longer_is_named(table):
    finding = diagnose(table(rows_of_a_job(slow={2: 1.5}))).findings[0]
    assert (finding.id, finding.ranks) == ("ESP202", (2,))
    assert finding.title == "Rank 2 delays the other ranks: slower compute"
    assert finding.saving_us == pytest.approx(4_000, abs=1)


def test_ranks_that_compute_alike_are_not(table):
    diagnosis = diagnose(table(rows_of_a_job()))
    assert [finding.id for finding in diagnosis.findings] == ["ESP301"]
    assert diagnosis.findings[0].saving_us == pytest.approx(2_000, abs=1)


@pytest.mark.parametrize(
    ("what_if", "then"), [("straggler=fix", {}), ("rank2.cpu=1.5x", {}), ("rank1.cpu=0.5x", {1: 2, 2: 1.5})]
)
def test_what_ifs_come_to_what_the_other_job_takes(what_if, then, table):
    found = answer(table(rows_of_a_job(slow={2: 1.5})), [what_if])
    truth_us = step_us(table(rows_of_a_job(slow=then), "other.parquet"))
    assert found.what_if[0].predicted_us == pytest.approx(truth_us, abs=1)


@pytest.mark.parametrize(("stage_ms", "what_if", "then_ms"), [(2, "rank1.cpu=2x", 1), (1, "rank1.cpu=0.5x", 2)])
def test_stages_of_a_pipeline_wait_for_each_other(stage_ms, what_if, then_ms, table):
    run = table(rows_of_a_pipeline(stage_ms))
    assert run.warnings == ()
    found = answer(run, [what_if])
    assert found.explained_pct > 99
    assert (found.coverage.p2p, found.coverage.p2p_matched) == (2 * 8 * 8, 2 * 8 * 8)
    truth_us = step_us(table(rows_of_a_pipeline(then_ms), "other.parquet"))
    assert found.what_if[0].low_us <= truth_us <= found.what_if[0].high_us
    assert found.what_if[0].predicted_us == pytest.approx(truth_us, rel=0.05)


def test_lanes_are_threads_of_their_own(table):
    job = rows_of_a_job()
    copies = [row | {"op": "copy", "stream": 3} for row in job if row["op"] == "forward"]
    events = table(job + copies).events(0).to_pandas()
    assert set(events[events.name == "copy"].tid) == {3}
    assert set(events[events.name == "copy"].thread_role) == {"other"}
    assert set(events[events.name == "forward"].thread_role) == {"main"}


def test_transfers_that_overlap_are_on_lanes_of_their_own(table):
    job = [row | {"start": row["start"] - 2_000_000} if row.get("group") else row for row in rows_of_a_job()]
    events = table(job + [row | {"op": "all_reduce c"} for row in job if row.get("group")]).events(0)
    transfers = events.where(events.is_kind("collective")).to_pandas()
    assert transfers.tid.nunique() == 2 * 2
    for _, lane in transfers.groupby("tid"):
        assert (lane.start_ns.to_numpy()[1:] >= (lane.start_ns + lane.dur_ns).to_numpy()[:-1]).all()


def test_a_file_for_each_rank(tmp_path):
    job = rows_of_a_job()
    for rank in range(4):
        write_table(tmp_path / f"{rank}.parquet", [row for row in job if row["rank"] == rank])
    assert step_us(load(tmp_path)) == 10_000
    (tmp_path / "2.parquet").write_bytes(b"PAR1")
    run = load(tmp_path)
    assert run.ranks == [0, 1, 3]
    assert run.missing_ranks == (2,)
    assert warned(run) == {"trace-unreadable", "rank-missing"}


def test_two_tables_of_one_rank_are_refused(tmp_path):
    for name in ("a.parquet", "b.parquet"):
        write_table(tmp_path / name, rows_of_a_job())
    with pytest.raises(InputError, match="two of these tables hold ranks 0–3"):
        load(tmp_path)


def test_a_group_may_be_a_name(table):
    rows = [row | {"group": "data"} if row.get("group") else row for row in rows_of_a_job()]
    (group,) = table(rows).meta.groups
    assert (group.name, group.ranks, group.description) == ("0-3", (0, 1, 2, 3), "data")


def test_without_steps_the_whole_is_one(table):
    run = table(without(rows_of_a_job(), "step"))
    assert warned(run) == {"no-steps"}
    found = answer(run)
    assert found.step_us == 80_000
    assert found.coverage.collectives_matched == found.coverage.collectives == 4 * 16


@pytest.mark.parametrize(
    "time",
    [
        lambda ns: ns - SINCE,
        lambda ns: datetime.fromtimestamp(0, UTC) + timedelta(microseconds=ns // 1000),
        lambda ns: datetime(1970, 1, 1) + timedelta(microseconds=ns // 1000),
    ],
    ids=["since the job began", "zoned", "without a zone"],
)
def test_times_in_other_forms(time, table):
    assert step_us(table(of_times(rows_of_a_job(), time))) == 10_000


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        (without(rows_of_a_job(), "rank", "end"), "has no column rank, end"),
        (changed(rows_of_a_job(), start=None), "has 1 rows without start"),
        (changed(rows_of_a_job(), op=None), "has 1 rows without op"),
        (changed(rows_of_a_job(), end=SINCE - 1), "has 1 rows whose end is before the start"),
        (changed(rows_of_a_job(), rank=-1), "has rank -1, which is not from 0"),
        (changed(rows_of_a_job(), step=1 << 31), "has step 2147483648, which is not from 0"),
        (changed(rows_of_a_job(), start=-1), "before 1970"),
        (changed(rows_of_a_job(), bytes=-5), "has bytes -5, which is not from 0"),
        (of_times(rows_of_a_job(), lambda ns: ns / 1e9), "has start as double, whose unit is not known"),
        (of_times(rows_of_a_job(), lambda ns: ns // 1000), "seem to be s, ms or µs since 1970"),
        ([row | {"op": [row["op"]]} for row in rows_of_a_job()], "has op as list<.*>, not as text"),
        ([row | {"step": 8 - row["step"]} for row in rows_of_a_job()], "steps whose order differs"),
        ([row | {"op": row["op"] + 10_000 * "!"} for row in rows_of_a_job()], "has op of 100[0-9]+ characters"),
        ([row | {"rank": str(row["rank"])} for row in rows_of_a_job()], "has rank as string, not as whole numbers"),
    ],
)
def test_what_is_wrong_is_named(rows, says, tmp_path):
    with pytest.raises(InputError, match=says) as error:
        load(write_table(tmp_path / "job.parquet", rows))
    assert error.value.remedy


def test_a_column_may_not_come_twice(tmp_path):
    rows = rows_of_a_job()
    columns = {name: [row.get(name) for row in rows] for name in ("rank", "op", "start", "end", "group")}
    twice = pa.table([*columns.values(), columns["group"]], names=[*columns, "group"])
    pq.write_table(twice, tmp_path / "job.parquet")
    with pytest.raises(InputError, match="has group more than once"):
        load(tmp_path / "job.parquet")


def test_whole_numbers_may_be_floats_of_which_some_lack(table):
    rows = [row | {"bytes": float(row.get("bytes", "nan"))} for row in rows_of_a_job()]
    assert step_us(table(rows)) == 10_000
    rows[0]["bytes"] = 0.5
    with pytest.raises(InputError, match="has values of bytes that int64 cannot hold"):
        table(rows)


def test_a_window_that_begins_late_may_have_times_since_the_job_began(table):
    assert step_us(table(of_times(rows_of_a_job(), lambda ns: ns - SINCE + 100 * 10**9))) == 10_000


def test_a_table_without_rows_is_refused(tmp_path):
    path = tmp_path / "job.parquet"
    pq.write_table(pa.table({name: pa.array([], pa.int64()) for name in ("rank", "op", "start", "end")}), path)
    with pytest.raises(InputError, match="holds no operation"):
        load(path)


def test_a_table_beyond_the_memory_limit_is_refused(tmp_path, monkeypatch):
    path = write_table(tmp_path / "job.parquet", rows_of_a_job())
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", "1000")
    with pytest.raises(InputError, match="larger than the memory limit"):
        load(path)


@pytest.mark.parametrize("content", [b"", b"PAR1PAR1", b"PAR1" + 100 * b"\xff" + b"PAR1"])
def test_bytes_that_are_no_table_are_refused(content, tmp_path):
    path = tmp_path / "job.parquet"
    path.write_bytes(content)
    with pytest.raises(InputError, match="is no readable Parquet file"):
        load(path)


def test_texts_that_are_no_utf8_are_refused(tmp_path):
    path = write_table(tmp_path / "job.parquet", rows_of_a_job())
    rows = pq.read_table(path)
    broken = pa.array([b"\xff"] * len(rows), pa.binary()).view(pa.string())
    pq.write_table(rows.set_column(rows.column_names.index("op"), "op", broken), path)
    with pytest.raises(InputError, match="is no readable Parquet file"):
        load(path)
