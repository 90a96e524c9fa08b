"""Python code on all ranks alike: must fire, must not, and what is named."""

import msgspec
import pytest

from esprof.analyzers import diagnose_run
from esprof.recorder.shared.stages import GARBAGE_COLLECTION
from esprof.trace.run import Run
from esprof.trace.schema import SAMPLES, table
from tests.cases.graph import EPOCH_NS, op, run_of, step
from tests.cases.step_runs import step_table

MS, NS = 1000.0, 1_000_000
HOOK, LINE, EMIT = "train.py(9): hook", "train.py(30): main", "python3.11/logging/__init__.py(12): emit"


def rows(gap_ms: float = 20):
    """Six steps of 80 ms and the gap: `aten::mm`, the gap, `aten::add`."""
    long = (80 + gap_ms) * MS
    return [
        row
        for n in range(6)
        for row in (
            step(n, long * n, long * (n + 1)),
            op("aten::mm", long * n, 40 * MS),
            op("aten::add", long * n + (40 + gap_ms) * MS, 40 * MS),
        )
    ]


def seen(frame, dur_ms=20.0, call=None, ran=0.0):
    dur_ns = round(dur_ms * NS)
    names = {"before": "aten::mm", "after": "aten::add", "frame": frame, "call": call}
    return names | {"dur_ns": dur_ns, "cpu_ns": round(ran * dur_ns)}


def found(*stacks_of_ranks, gap_ms=20, stack="train.py(30): main"):
    """The findings of Python code in jobs whose ranks compute alike, and whose stacks are all that is given."""
    ranks = range(len(stacks_of_ranks))
    run = run_of({rank: rows(gap_ms) for rank in ranks}, stacks=dict(zip(ranks, stacks_of_ranks, strict=True)))
    samples = table({"at_ns": [1], "dur_ns": [10], "cpu_ns": [1], "step": [6], "stack": [stack]}, SAMPLES)
    phases = ["timed"] * 6 + ["stack"]
    steps = step_table([80 + gap_ms] * 7, start_ns=EPOCH_NS, first=0, phase=phases)

    def read(name, rank):
        return {"samples": samples, "steps": steps}.get(name) or getattr(run, name)(rank)

    diagnosis = diagnose_run(Run(run.meta, read))
    msgspec.json.encode(diagnosis)
    return [finding for finding in diagnosis.findings if finding.id in ("ESP402", "ESP403")]


def test_a_hook_of_a_single_process_is_named_with_its_line_and_what_it_called():
    (finding,) = found([seen(HOOK, call=EMIT, ran=0.9)])
    assert finding.id == "ESP402"
    assert finding.title == f"Rank 0 spends 20.0 ms a step in {HOOK}, calling {EMIT}"
    assert finding.saving_us == pytest.approx(20 * MS, rel=0.01)
    assert finding.evidence["place"].value == HOOK
    assert finding.evidence["on_a_cpu"].value == pytest.approx(0.9, abs=0.01)
    assert "Python computes there" in finding.advice
    assert finding.command is not None
    assert r"python[^train\.py\(\d+\): hook( →|$)]=0" in finding.command


def test_on_all_ranks_alike_it_is_named_once():
    (finding,) = found(*[[seen(HOOK)]] * 3)
    assert finding.ranks == (0, 1, 2)
    assert "sleeps, or waits" in finding.advice


def test_lines_of_a_function_are_one_place_and_those_of_the_training_loop_are_not():
    lines = [seen(HOOK, 8), seen("train.py(10): hook", 4), seen(LINE, 5), seen("train.py(31): main", 3)]
    titles = [finding.title for finding in found(lines)]
    assert titles == [
        f"Rank 0 spends 12.0 ms a step in {HOOK}",
        f"Rank 0 spends 5.00 ms a step in {LINE}",
        "Rank 0 spends 3.00 ms a step in train.py(31): main",
    ]


def test_what_one_rank_does_alone_is_for_the_stragglers():
    alone, alike = [seen(HOOK, 12), seen(LINE, 8)], [seen(LINE, 20)]
    assert [finding.title for finding in found(alone, alike, alike)] == [
        f"Ranks 0–2 spend up to 20.0 ms a step in {LINE}"
    ]
    assert found(alone, [seen("a.py(1): f")], [seen("b.py(1): g")]) == []


def test_garbage_collections_are_named_wherever_they_came():
    collected = [seen(HOOK, 10, call=GARBAGE_COLLECTION), seen(LINE, 10, call=GARBAGE_COLLECTION)]
    (finding,) = found(collected, [seen("a.py(1): f", 12), seen(LINE, 8, call=GARBAGE_COLLECTION)])
    assert (finding.id, finding.ranks) == ("ESP403", (0, 1))
    assert finding.evidence["per_step"].of(1) == pytest.approx(8 * NS)
    assert "gc.freeze()" in finding.advice
    assert finding.command is not None
    assert "python[garbage collection]=0" in finding.command


@pytest.mark.parametrize(
    ("stacks", "gap_ms"),
    [([], 20), ([seen(None)], 20), ([seen(HOOK)], 0.15), ([seen(HOOK, 0.5), seen(None, 19.5)], 20)],
)
def test_nothing_is_named_where_nothing_was_seen_or_it_costs_nothing(stacks, gap_ms):
    assert found(stacks, gap_ms=gap_ms) == []


def test_names_are_shown_without_what_could_pass_for_control_characters():
    (finding,) = found([seen("a\x1b[2J.py(1): f")])
    assert "\x1b" not in finding.title


def test_of_two_ranks_both_must_be_there():
    assert found([seen(HOOK)], [seen(None)]) == []
    assert [finding.ranks for finding in found([seen(HOOK, 20)], [seen(HOOK, 12), seen(None, 8)])] == [(0, 1)]


@pytest.mark.parametrize(
    "file", ["a],b/train.py", "a[1]/train.py", "a b/it's=1,2.py", "C:\\jobs\\train.py", "<string>", "{x}(y)*.py"]
)
@pytest.mark.parametrize("function", ["<lambda>", "Job.<locals>.<listcomp>", "main"])
def test_whatever_a_file_is_called_its_command_finds_it(file, function):
    (finding,) = found([seen(f"{file}(9): {function}")])
    assert finding.saving_us == pytest.approx(20 * MS, rel=0.01)
