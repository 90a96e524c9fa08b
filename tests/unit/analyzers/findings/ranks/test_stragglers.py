"""ESP201 from samples of all steps: work that only one rank does."""

import pyarrow as pa
import pytest

from esprof.analyzers import diagnose
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, Table, table
from tests.cases.graph import EPOCH_NS, gloo, op, run_of, step
from tests.cases.step_runs import step_table

MS, NS, PLAIN = 1000.0, 1_000_000, 40
MAIN, LOG, WRITE = "train.py(30): main", "train.py(9): log", "python3.11/json/encoder.py(4): encode"
CALL = "python3.11/site-packages/torch/nn/modules/module.py(1786): Module._call_impl"
FORWARD = "model.py(3): Net.forward"


def rows(late_ms=0) -> list:
    """Six steps of 100 ms of equal ranks, whose all-reduce ends at 60 ms; a rank may come to it so much later."""
    found, arrives = [], (50 + late_ms) * MS
    for n in range(6):
        at = 100 * MS * n
        found += [step(n, at, at + 100 * MS), op("aten::mm", at, arrives)]
        found += [*gloo(at + arrives, at + arrives + 5, at + 60 * MS), op("aten::add", at + 60 * MS, 40 * MS)]
    return found


def stragglers(*stacks_of_ranks, ms=10, late_ms=0, seen=PLAIN, recorded_in=()):
    """Findings on slow ranks of a job of 40 steps without profiler, in which the last rank is late by `late_ms`.

    In the first `seen` of these steps the samples show each of a rank's stacks for `ms`, and otherwise the model. In the
    recorded steps `recorded_in` there is one sample of each stack.
    """
    plain = step_table([100] * PLAIN, start_ns=EPOCH_NS + 10_000 * NS, first=7)
    recorded = step_table([100] * 7, start_ns=EPOCH_NS, first=0, phase=["timed"] * 6 + ["stack"])
    steps = Table(pa.concat_tables([recorded.arrow, plain.arrow], promote_options="permissive"))
    begin = plain.ints("start_ns").tolist()
    samples = []
    for stacks in stacks_of_ranks:
        sampled = [(EPOCH_NS + (100 * n + 5) * NS, NS, NS, n, one) for n in recorded_in for one in stacks]
        sampled.append((EPOCH_NS + 610 * NS, NS, NS, 6, MAIN))
        for at in range(1, PLAIN):
            sampled += [
                (begin[at] + 10 * (k + 1) * NS, ms * NS, ms * NS // 2, 7 + at, one)
                for k, one in enumerate(stacks)
                if at <= seen
            ]
            sampled.append((begin[at] + 90 * NS, 20 * NS, 20 * NS, 7 + at, f"{MAIN}\n{CALL}\n{FORWARD}"))
        samples.append(table(dict(zip(SAMPLES.names, zip(*sampled, strict=True), strict=True)), SAMPLES))
    late = len(samples) - 1
    run = run_of({rank: rows(late_ms if rank == late else 0) for rank in range(len(samples))})

    def read(name, rank):
        return {"samples": samples[rank], "steps": steps}.get(name) or run.recorded(name, rank)

    return [one for one in diagnose(Run(run.meta, read)).findings if one.id.startswith("ESP20")]


def test_work_that_only_one_rank_does_is_reported_with_its_line_and_cost():
    (finding,) = stragglers([], [f"{MAIN}\n{LOG}\n{WRITE}"], [])
    assert (finding.id, finding.ranks, finding.command) == ("ESP201", (1,), None)
    assert (
        finding.title
        == f"Rank 1 delays the other ranks: it alone spends {finding.saving_us / MS:.2f} ms a step in {LOG}"
    )
    assert finding.saving_us == pytest.approx(10 * MS * (PLAIN - 1) / PLAIN, rel=0.03)
    assert finding.evidence["python_call"].of(1) == WRITE
    assert finding.evidence["cpu_share"].value == 0.5
    assert finding.evidence["per_step"].of(0) == 0


def test_it_is_reported_where_the_prediction_for_the_late_rank_is_uncertain():
    assert stragglers([], [], late_ms=6) == []
    (finding,) = stragglers([], [f"{MAIN}\n{LOG}"], late_ms=6)
    assert (finding.ranks, finding.evidence["python_line"].of(1)) == ((1,), LOG)
    assert finding.saving_us == pytest.approx(10 * MS * (PLAIN - 1) / PLAIN, rel=0.03)


def test_a_function_in_few_samples_is_one_ranks_own_if_recorded_steps_show_it_too():
    stacks = [f"{MAIN}\n{LOG}"], []
    assert stragglers(*stacks, ms=40, seen=6) == []
    assert stragglers(*stacks, ms=40, seen=6, recorded_in=(2,)) == []
    (finding,) = stragglers(*stacks, ms=40, seen=6, recorded_in=(2, 4))
    assert finding.saving_us == pytest.approx(6 * 40 * MS / PLAIN, rel=0.03)


def test_the_line_belongs_to_the_function_that_no_other_rank_runs():
    (finding,) = stragglers([f"{MAIN}\n{LOG}\n{CALL}\n{FORWARD}"], [])
    assert finding.evidence["python_line"].of(0) == LOG


@pytest.mark.parametrize(
    ("stacks", "ms"),
    [
        ([[LOG], [LOG]], 10),  # all do it
        ([[f"{MAIN}\n{LOG}"], []], 1),  # short
        ([[f"{MAIN}\npython3.11/site-packages/torch/utils/data/dataloader.py(7): next\n{LOG}"], []], 10),  # input
        ([[f"{MAIN}\n{CALL}\n{FORWARD}"], []], 10),  # more of the work of all ranks
        ([[f"{MAIN}\n{LOG}"]], 10),  # one rank
    ],
)
def test_work_of_all_ranks_and_short_work_are_not_reported(stacks, ms):
    assert stragglers(*stacks, ms=ms) == []
