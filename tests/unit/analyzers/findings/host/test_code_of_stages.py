"""ESP402: code of the job that one stage of a pipeline runs."""

import pyarrow as pa
import pytest

from esprof.run.run import Run
from esprof.run.schema import SAMPLES, Table, table
from tests.cases.findings import ungrouped
from tests.cases.graph import EPOCH_NS, gloo, op, run_of, step
from tests.cases.messages import message
from tests.cases.step_runs import step_table

MS, NS, PLAIN = 1000.0, 1_000_000, 40
MAIN, HOOK, FORWARD = "train.py(30): main", "statistics.py(7): note", "model.py(3): Net.forward"
CALL = "python3.11/site-packages/torch/nn/modules/module.py(1786): Module._call_impl"


def stage(rank):
    """Six steps of 100 ms: the first stage sends what it computes to the second."""
    rows = []
    for n in range(6):
        at = 100 * MS * n
        rows.append(step(n, at, at + 100 * MS))
        if rank:
            rows += [*message("recv", 0, at + 10, at + 41 * MS), op("aten::head", at + 42 * MS, 50 * MS)]
        else:
            rows += [op("aten::embed", at + 10, 40 * MS), *message("send", 1, at + 40.5 * MS, at + 41 * MS)]
    return rows


def data_parallel(rank):
    """The same steps of two ranks that do the same work."""
    rows = []
    for n in range(6):
        at = 100 * MS * n
        rows += [step(n, at, at + 100 * MS), op("aten::mm", at + 10, 90 * MS)]
        rows += gloo(at + 90.1 * MS, at + 90.2 * MS, at + 99 * MS)
    return rows


def found(rows_of, *hook_ms):
    """Findings on code, if samples of the steps without profiler show the hook for so long on each rank."""
    recorded = step_table([100] * 7, start_ns=EPOCH_NS, first=0, phase=["timed"] * 6 + ["stack"])
    plain = step_table([100] * PLAIN, start_ns=EPOCH_NS + 10_000 * NS, first=7)
    steps = Table(pa.concat_tables([recorded.arrow, plain.arrow], promote_options="permissive"))
    begin, samples = plain.ints("start_ns").tolist(), []
    for ms in hook_ms:
        rows = [(EPOCH_NS + 610 * NS, NS, NS, 6, MAIN)]
        for at in range(1, PLAIN):
            rows.append((begin[at] + 50 * NS, (50 - ms) * NS, 0, 7 + at, f"{MAIN}\n{CALL}\n{FORWARD}"))
            rows += [(begin[at] + 80 * NS, ms * NS, ms * NS, 7 + at, f"{MAIN}\n{HOOK}")] if ms else []
        samples.append(table(dict(zip(SAMPLES.names, zip(*rows, strict=True), strict=True)), SAMPLES))
    run = run_of({rank: rows_of(rank) for rank in range(len(hook_ms))})

    def read(name, rank):
        return {"samples": samples[rank], "steps": steps}.get(name) or run.recorded(name, rank)

    return [one for one in ungrouped(Run(run.meta, read)) if one.id == "ESP402"]


def test_code_of_one_stage_is_named_and_priced_with_the_time_of_its_rank():
    (finding,) = found(stage, 20, 0)
    assert finding.ranks == (0,)
    assert finding.saving_us == pytest.approx(20 * MS * (PLAIN - 1) / PLAIN, rel=0.02)
    assert finding.title == f"Rank 0 spends {finding.saving_us / MS:.1f} ms a step in {HOOK}"
    assert finding.evidence["cpu_share"].value == 1


def test_code_of_all_stages_is_one_finding():
    (finding,) = found(stage, 20, 20)
    assert finding.ranks == (0, 1)
    assert finding.saving_us == pytest.approx(20 * MS * (PLAIN - 1) / PLAIN, rel=0.02)


def test_code_of_one_of_several_equal_ranks_is_left_to_the_rule_for_stragglers():
    assert found(data_parallel, 20, 0) == []
