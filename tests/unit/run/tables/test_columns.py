"""Columns with other names and units, as the public straggler traces have them."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from esprof import load
from esprof.analyzers import diagnose
from esprof.core.errors import InputError, UsageError
from esprof.replay import answer
from tests.cases.command_line import esprof
from tests.cases.operation_tables import rows_of_a_job, write_table
from tests.cases.stage_tables import SINCE_S, rows_of_stages

COLUMNS = {"op": "optype", "start": "start_ts:s", "duration": "duration:s", "data": "dp_rank", "stage": "stage"}
SLOW = {(0, 0): 2.0}
SAMPLED = (16, 21, 27, 29, 30, 404, 408, 409)


@pytest.fixture
def table(tmp_path):
    """Write rows as a table and open it with these columns."""

    def table(rows, columns=COLUMNS):
        return load(write_table(tmp_path / "job.parquet", rows), columns=columns)

    return table


def step_us(run):
    return answer(run).step_us


def test_groups_come_from_data_rank_and_stage(table):
    run = table(rows_of_stages(data=2, stages=3, steps=range(4)))
    assert {group.name for group in run.meta.groups} == {"0-1", "2-3", "4-5", "0,2", "1,3", "2,4", "3,5"}
    coverage = answer(run).coverage
    assert coverage.p2p == coverage.p2p_matched == 4 * 2 * 2 * 2 * 4 * 2
    assert coverage.collectives == coverage.collectives_matched == 4 * 6


def test_sends_to_no_stage_are_left_out(table):
    rows = rows_of_stages(steps=range(4))
    alone = [
        row | {"optype": op, "duration": 0.0001}
        for op, stage in (("forward-send", 1), ("backward-send", 0), ("forward-recv", 0))
        for row in rows
        if row["optype"] == "optimizer" and row["stage"] == stage
    ]
    run = table(rows + alone)
    (warning,) = run.warnings
    assert warning.code == "events-left-out"
    assert warning.message.startswith("24 sends and receives")


@pytest.mark.parametrize(
    ("op", "groups"),
    [("embedding-grads-all-reduce", {"0,4", "1,5"}), ("layernorm-grads-all-reduce", set())],
)
def test_collectives_between_other_ranks(op, groups, table):
    rows = [row for row in rows_of_stages(data=2, stages=3, steps=range(2)) if "compute" in row["optype"]]
    ends = [row | {"optype": op} for row in rows if row["stage"] != 1]
    assert {group.name for group in table(rows + ends).meta.groups} == groups


def test_a_rank_with_two_places_is_refused(table):
    rows = rows_of_stages(steps=range(2))
    with pytest.raises(InputError, match="rank 0 has several values of data or stage"):
        table([rows[0] | {"stage": 1}, *rows])
    with pytest.raises(InputError, match="ranks 0 and 1 have the same values"):
        table([row | {"dp_rank": 0} for row in rows])


def test_sampled_steps_are_one_window(table):
    rows = rows_of_stages(steps=SAMPLED)
    run = table(rows)
    assert [warning.code for warning in run.warnings] == ["steps-joined"]
    found = answer(run)
    assert [step.step for step in found.steps] == list(SAMPLED[1:])
    assert found.step_us == pytest.approx(step_us(table(rows_of_stages(steps=range(8)))), abs=2)


def test_ranks_may_be_one_of_each_tensor_parallel_group(table):
    rows = [row | {"rank": 4 * row["rank"]} for row in rows_of_stages(4, 4, 8, SAMPLED, SLOW)]
    run = table(rows)
    assert (run.ranks[:3], run.world_size, run.missing_ranks) == ([0, 4, 8], 16, ())
    assert [warning.code for warning in run.warnings] == ["steps-joined"]
    diagnosis = diagnose(run)
    assert (diagnosis.findings[0].id, diagnosis.findings[0].ranks) == ("ESP202", (0,))
    without = [{name: row[name] for name in row if name not in ("dp_rank", "stage")} for row in rows]
    assert table(without, {name: COLUMNS[name] for name in ("op", "start", "duration")}).missing_ranks


def test_a_step_that_a_rank_lacks_is_left_out(table):
    rows = [row for row in rows_of_stages(steps=range(8)) if (row["rank"], row["step"]) != (1, 5)]
    run = table(rows)
    assert [warning.code for warning in run.warnings] == ["steps-left-out", "steps-joined"]
    assert len(answer(run).steps) == 6


def test_rounded_times_overlap_nothing(table):
    run = table([row | {"start_ts": row["start_ts"] + 4.321e-4} for row in rows_of_stages(steps=range(8))])
    assert answer(run).explained_pct == pytest.approx(100, abs=0.1)
    assert not any("→" in name for name in run.events(0).to_pandas().name)


@pytest.mark.parametrize("recorded", ["all", "no wait", "no transfer"])
def test_ranks_that_wait_for_a_slow_one_are_not_named(recorded, table):
    def of(slow):
        rows = rows_of_stages(2, 4, 8, SAMPLED, slow)
        if recorded == "no wait":  # A transfer begins only when both sides have come.
            return [_without_wait(row) for row in rows]
        return [row for row in rows if recorded == "all" or not _is_transfer(row)]

    run = table(of(SLOW))
    finding = diagnose(run).findings[0]
    assert (finding.id, finding.ranks) == ("ESP202", (0,))
    truth_us = step_us(run) - step_us(table(of({})))
    assert finding.saving_us == pytest.approx(truth_us, rel=0.25)


def test_a_rank_with_gaps_of_its_own_is_late(table):
    rows = rows_of_a_job(slow={2: 1.5})
    for row in rows:
        if row["rank"] == 2 and "group" not in row:  # It takes as long as on the other ranks.
            row["end"] -= (row["end"] - row["start"]) // 3
    finding = diagnose(table(rows, {})).findings[0]
    assert (finding.id, finding.ranks) == ("ESP201", (2,))


def _is_transfer(row):
    return "send" in row["optype"] or "recv" in row["optype"]


def _without_wait(row):
    end = row["start_ts"] + row["duration"]
    return row | {"start_ts": end - 0.0004, "duration": 0.0004} if _is_transfer(row) else row


def test_a_duration_needs_no_mapping(table):
    rows = [row | {"duration": row.pop("end") - row["start"]} for row in rows_of_a_job()]
    assert step_us(table(rows, {})) == 10_000


def test_groups_may_be_numbers(table):
    rows = [row | {"team": 7 if row.get("group") else None, "group": None} for row in rows_of_a_job()]
    (group,) = table(rows, {"group": "team"}).meta.groups
    assert (group.ranks, group.description) == ((0, 1, 2, 3), "group 7")


@pytest.mark.parametrize(
    ("columns", "says"),
    [
        (COLUMNS | {"op": "kind"}, "has no column kind"),
        (COLUMNS | {"start": "optype:s"}, "has start as string, not as numbers"),
        (COLUMNS | {"start": "start_ts"}, "has start as double, whose unit is not known"),
        (COLUMNS | {"start": "start_ts:h"}, "has no column start_ts:h"),
    ],
)
def test_a_wrong_mapping_is_named(columns, says, table):
    rows = rows_of_stages(steps=range(2))
    with pytest.raises(InputError, match=says) as error:
        table(rows, columns)
    assert error.value.remedy


def test_missing_numbers_are_named(table):
    rows = rows_of_stages(steps=range(2))
    with pytest.raises(InputError, match="has 1 rows without start"):
        table([rows[0] | {"start_ts": float("nan")}, *rows])
    with pytest.raises(InputError, match="after 2096 in this unit"):
        table([rows[0] | {"start_ts": SINCE_S * 1e9}, *rows])


def test_unknown_names_are_refused(table, tmp_path):
    with pytest.raises(UsageError, match="unknown column kernel"):
        table(rows_of_a_job(), {"kernel": "op"})
    (tmp_path / "trace.json").write_text("[]")
    with pytest.raises(UsageError, match="tables of operations only"):
        load(tmp_path / "trace.json", columns=COLUMNS)


def test_the_option_of_the_verbs(tmp_path):
    path = write_table(tmp_path / "job.parquet", rows_of_stages(steps=range(4)))
    columns = ",".join(f"{name}={column}" for name, column in COLUMNS.items())
    shown = esprof("diagnose", str(path), "--columns", columns)
    assert f"--columns {columns}" in " ".join(shown.stdout.replace("\n", " ").split())
    refused = esprof("diagnose", str(path), "--columns", "op")
    assert refused.returncode == 2
    assert "NAME=COLUMN" in refused.stderr


def test_integers_have_units_too(table):
    rows = [row | {name: row[name] // 1000 for name in ("start", "end")} for row in rows_of_a_job()]
    assert step_us(table(rows, {"start": "start:us", "end": "end:us"})) == 10_000


def test_categories_are_texts(tmp_path):
    rows = rows_of_stages(steps=range(4))
    columns = {name: [row[name] for row in rows] for name in rows[0]}
    coded = pa.table(columns | {"optype": pa.array(columns["optype"]).dictionary_encode()})
    pq.write_table(coded, tmp_path / "job.parquet")
    assert load(tmp_path / "job.parquet", columns=COLUMNS).ranks == [0, 1, 2, 3]
