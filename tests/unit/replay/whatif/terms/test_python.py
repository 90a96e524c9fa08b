"""`python[…]=0`: time removed from gaps and operations, and runs without samples."""

import pytest

from esprof.replay.building.build import build
from esprof.replay.whatif.pricing import what_if
from esprof.run.run import Window
from tests.cases.graph import op, run_of, step

MS, NS = 1000.0, 1_000_000
HOOK, MAIN, EMIT = "train.py(9): hook", "train.py(30): main", "python3.11/logging/__init__.py(12): emit"


def rows(gap_ms: float = 20):
    """Steps of 50 ms: `aten::mm`, a gap, `evaluate` up to the end."""
    return [
        row
        for n in range(3)
        for row in (
            step(n, 50 * MS * n, 50 * MS * (n + 1)),
            op("aten::mm", 50 * MS * n, 10 * MS),
            op("evaluate", (50 * n + 10 + gap_ms) * MS, (40 - gap_ms) * MS),
        )
    ]


def seen(before, after, frame, dur_ms, call=None, ran=0.0):
    dur_ns = round(dur_ms * NS)
    return {
        "before": before, "after": after, "frame": frame, "call": call, "dur_ns": dur_ns, "cpu_ns": round(ran * dur_ns),
    }  # fmt: skip


def after(spec: str, stacks, gap_ms: float = 20, ranks=(0,)) -> list:
    run = run_of(
        {rank: rows(gap_ms) for rank in ranks},
        stacks=dict.fromkeys(ranks, stacks),
        windows=(Window(first=7, last=8, stacks=True),),
    )
    (answer,) = what_if(run, build(run), [spec])
    return [answer.predicted_us, answer.reason]


HALF = [seen("aten::mm", "evaluate", HOOK, 15, call=EMIT), seen("aten::mm", "evaluate", MAIN, 15)]


@pytest.mark.parametrize(
    ("pattern", "left_ms"),
    [("hook", 40), ("emit", 40), (r"^train\.py\(30\)", 40), ("hook|main", 30), ("hook → .*emit", 40)],
)
def test_a_gap_loses_the_share_that_was_seen_in_gaps_of_its_name(pattern, left_ms):
    assert after(f"python[{pattern}]=0", HALF)[0] == pytest.approx(left_ms * MS, abs=1)


def test_an_operation_loses_the_sampled_time_of_its_python_callbacks():
    # In two steps with stacks 12 ms of `evaluate`; in the steps of the graph it takes 20 ms.
    called_back = [seen("evaluate", None, HOOK, 12)]
    assert after("python[hook]=0", called_back)[0] == pytest.approx(44 * MS, abs=1)
    assert after("python[hook]=0", [seen("evaluate", None, HOOK, 400)])[0] == pytest.approx(30 * MS, abs=1)


def test_a_gap_without_samples_keeps_its_time():
    half_seen = [seen("aten::mm", "evaluate", HOOK, 10), seen("aten::mm", "evaluate", None, 30)]
    assert after("python[hook]=0", half_seen)[0] == pytest.approx(45 * MS, abs=1)


def test_short_gaps_are_ordinary_python():
    assert "no Python code of that name is known" in after("python[hook]=0", HALF, gap_ms=0.04)[1]


@pytest.mark.parametrize(
    "stacks", [[], [seen("aten::bmm", "evaluate", HOOK, 10)], [seen("aten::mm", "evaluate", MAIN, 9)]]
)
def test_code_that_was_not_sampled_is_declined(stacks):
    assert "no Python code of that name is known" in after("python[hook]=0", stacks)[1]


def test_the_scope_limits_it_to_a_rank():
    assert after("rank0.python[hook]=0", HALF, ranks=(0, 1))[0] == pytest.approx(50 * MS, abs=1)
    assert after("rank0-1.python[hook]=0", HALF, ranks=(0, 1))[0] == pytest.approx(40 * MS, abs=1)


def test_gaps_of_unknown_code_are_removed_where_no_stacks_were_recorded():
    assert after("python[^unrecorded code$]=0", [])[0] == pytest.approx(30 * MS, abs=1)
    assert after("python[^unrecorded code$]=0", HALF)[0] is None
    assert after("python[^unrecorded code$]=0", [], gap_ms=0.9)[0] is None
