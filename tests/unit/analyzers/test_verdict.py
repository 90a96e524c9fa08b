"""The verdict if no finding has an estimated saving: the breakdown of the step, and its largest share."""

import pytest

from esprof.analyzers import diagnose
from esprof.core import readable
from esprof.core.types import ns
from esprof.replay import Replayed
from tests.cases.graph import EPOCH_NS, op, run_of, step
from tests.cases.step_runs import step_table

MS, NS = 1000.0, 1_000_000


def job(gap_ms: float, stacks=(), plain_ms=(), **noted):
    """Six steps of 100 ms: `aten::mm`, a gap, `aten::add`. Steps without profiler follow, of so many ms each."""
    rows = [
        row
        for n in range(6)
        for row in (
            step(n, 100 * MS * n, 100 * MS * (n + 1)),
            op("aten::mm", 100 * MS * n, 50 * MS),
            op("aten::add", 100 * MS * n + (50 + gap_ms) * MS, (50 - gap_ms) * MS),
        )
    ]
    phases = ["timed"] * 6 + ["plain"] * len(plain_ms)
    steps = {0: step_table([100] * 6 + [*plain_ms], start_ns=EPOCH_NS, first=0, phase=phases, **noted)}
    steps = steps if noted or plain_ms else None
    return run_of({0: rows}, stacks={0: stacks} if stacks else None, steps=steps)


def seen(frame: str | None, dur_ms: float):
    names = {"before": "aten::mm", "after": "aten::add", "frame": frame, "call": None}
    return names | {"dur_ns": round(dur_ms * NS), "cpu_ns": 0}


def test_a_step_filled_with_compute_has_no_known_cause():
    assert diagnose(job(gap_ms=0)).verdict == (
        "A step takes 100.0 ms, 100 % of it compute; no cause known to esprof costs noticeable time."
    )


def test_otherwise_the_largest_share_is_named_with_its_operations():
    # Stacks were sampled, but none in the gap.
    assert diagnose(job(gap_ms=30, stacks=[seen(None, 30)])).verdict == (
        "A step takes 100.0 ms, 70 % of it compute. The largest part of the rest is CPU work while the "
        "device idles: 30.0 ms, most of it in aten::mm → aten::add. No change that esprof can price would save 1 % "
        "of a step."
    )


def test_a_known_line_is_named():
    replayed = Replayed.of(job(gap_ms=30, stacks=[seen("train.py(9): hook", 30)]))
    (finding,) = diagnose(replayed).findings
    assert "train.py(9): hook" in finding.title
    assert finding.title in diagnose(replayed).verdict


def test_an_insignificant_first_saving_is_reported_as_such():
    run = job(30, [seen(None, 30)], cpu_ns=[40 * NS] * 6, ready_ns=[ready * NS for ready in (0, 0, 0, 0, 0, 50)])
    (finding,) = diagnose(run).uncertain
    assert not finding.is_saving
    most = readable.duration(ns(finding.saving_high_us))
    assert f"No saving is certain; the largest may be 0 to {most}: {finding.title}." in diagnose(run).verdict


@pytest.mark.parametrize(("ready_ms", "confidence"), [(2, "high"), (30, "medium")])
def test_a_lack_of_cpus_lowers_the_confidence_of_other_findings(ready_ms, confidence):
    run = job(30, [seen("train.py(9): hook", 30)], cpu_ns=[40 * NS] * 6, ready_ns=[ready_ms * NS] * 6)
    found = {finding.id: finding.confidence for finding in diagnose(run).findings}
    assert found["ESP402"] == confidence
    assert found.get("ESP404", "high") == "high"


@pytest.mark.parametrize(("plain_ms", "is_atypical"), [(15, True), (60, False)])
def test_a_window_that_is_much_slower_than_the_steps_next_to_it_is_not_typical(plain_ms, is_atypical):
    diagnosis = diagnose(job(30, [seen("train.py(9): hook", 30)], plain_ms=[plain_ms] * 60))
    (finding,) = diagnosis.findings
    assert (finding.confidence == "low") == is_atypical
    unlike = "The recorded steps are not typical of the job: they take 6.7 times as long as the steps without profiler"
    assert diagnosis.verdict.startswith(unlike) == is_atypical
    assert finding.title in diagnosis.verdict


@pytest.mark.parametrize(
    ("gap_ms", "ready_ms", "is_before"), [(30, (0, 0, 0, 0, 0, 50), False), (20, (0, 0, 0, 0, 60, 60), True)]
)
def test_an_uncertain_cause_is_named_with_a_bound_and_before_it_if_it_may_save_more(gap_ms, ready_ms, is_before):
    diagnosis = diagnose(job(gap_ms, cpu_ns=[40 * NS] * 6, ready_ns=[ready * NS for ready in ready_ms]))
    (bound,), (cause,) = diagnosis.findings, diagnosis.uncertain
    assert (bound.is_bound, cause.is_bound) == (True, False)
    said = f"{bound.title}. No fix saves more than {gap_ms}.0 ms of a step of 100.0 ms."
    assert diagnosis.verdict.startswith("No cause is certain; the largest may save 0 to " if is_before else said)
    assert diagnosis.verdict.endswith(f" What is certain: {said}" if is_before else f": {cause.title}.")


def test_a_bound_alone_is_named_without_a_cause():
    diagnosis = diagnose(job(30))
    (bound,) = diagnosis.findings
    assert diagnosis.verdict == f"{bound.title}. No fix saves more than 30.0 ms of a step of 100.0 ms."
