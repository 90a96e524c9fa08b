"""Findings that save the same time are one loss: its cause is listed, its symptoms are attached to it."""

from pathlib import Path

import msgspec
import pytest

import esprof
from benchmarks.known.jobs import job
from benchmarks.known.kineto import write
from benchmarks.known.machine import run
from esprof.analyzers.diagnosis import diagnose_replayed, found_in
from esprof.analyzers.evidence import Evidence
from esprof.analyzers.finding import Finding
from esprof.analyzers.findings import PAGES
from esprof.analyzers.ignore import NOTHING
from esprof.analyzers.losses import MIN_PCT_BEFORE_BOUNDS, UPSTREAM_FIRST, by_loss
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Case
from esprof.replay.replayed import Replayed

STEP_US = 100_000.0


def measured(id: str, saving_us: float, low_us: float | None = None, high_us: float | None = None, **other) -> Finding:
    """A finding whose saving was measured, so that no replay compares it."""
    evidence = {name: Evidence(other.pop(name)) for name in ("source_line", "calls", "innermost") if name in other}
    return Finding(
        id=id,
        title=id,
        severity="info",
        ranks=(0,),
        saving_us=saving_us,
        saving_low_us=0.9 * saving_us if low_us is None else low_us,
        saving_high_us=1.1 * saving_us if high_us is None else high_us,
        saving_pct=100 * saving_us / STEP_US,
        saving_device_hours_per_day=0.24 * saving_us / 1000,
        confidence="high",
        evidence=evidence,
        advice="",
        **other,
    )


def simulated(shape: str, seed: int, folder: Path) -> Replayed:
    """A simulated job (`benchmarks/known/`)."""
    made = job(shape, seed)
    write(folder, made.program, run(made.program), made.groups, made.recording)
    return Replayed.of(esprof.load(folder))


def listed(*found: Finding) -> list[tuple[str, float, tuple[str, ...]]]:
    grouped = by_loss(found, None).findings
    return [(one.id, round(one.saving_us), tuple(symptom.id for symptom in one.symptoms)) for one in grouped]


def test_a_save_is_the_cause_of_the_line_that_saves():
    line = measured("ESP402", 19_500, source_line="ckpt.py(12): write", calls="torch/serialization.py(900): save")
    save = measured("ESP601", 18_000, source_line="train.py(80): main", innermost="ckpt.py(14): write")
    assert listed(line, save) == [("ESP601", 18_000, ("ESP402",))]


def test_two_lines_of_the_training_loop_are_two_losses():
    line = measured("ESP402", 19_500, source_line="train.py(60): main", calls="<built-in function sleep>")
    save = measured("ESP601", 18_000, source_line="train.py(80): main")
    assert listed(line, save) == [("ESP402", 19_500, ()), ("ESP601", 18_000, ())]


def test_a_measured_and_a_replayed_loss_in_different_places_are_both_causes(tmp_path):
    """A save of 10 ms in single steps takes nothing from the saving of a late rank."""
    replayed = simulated("ddp", 36, tmp_path)
    late = next(one for one in found_in(Case(replayed, RecordedJob(replayed.run))) if one.id == "ESP202")
    save = measured("ESP601", 10_000, source_line="train.py(80): main")
    found = {one.id: one for one in by_loss([late, save], replayed.pricer).findings}
    assert found["ESP202"].saving_us == pytest.approx(late.saving_us)
    assert found["ESP601"].saving_us == 10_000
    assert not any(one.symptoms for one in found.values())


def test_a_saving_that_rounds_to_no_per_cent_is_no_cause_next_to_others():
    tiny = measured("ESP402", 0.0002, source_line="ckpt.py(12): write")
    assert tiny.saving_pct < 0.001
    grouped = listed(measured("ESP601", 5_000), msgspec.structs.replace(tiny, saving_pct=0.0))
    assert [id for id, *_ in grouped] == ["ESP601"]


def test_the_rest_of_a_larger_finding_is_a_loss_of_its_own():
    line = measured("ESP402", 50_000, source_line="ckpt.py(12): write")
    save = measured("ESP601", 20_000, source_line="ckpt.py(12): write")
    assert listed(line, save) == [("ESP402", 30_000, ()), ("ESP601", 20_000, ())]


def test_the_credit_of_a_rest_has_an_interval_and_shares_in_proportion():
    line = measured("ESP402", 50_000, 40_000, 60_000, source_line="ckpt.py(12): write")
    save = measured("ESP601", 20_000, source_line="ckpt.py(12): write")
    rest = by_loss([line, save], None).findings[0]
    assert (rest.saving_low_us, rest.saving_high_us, rest.saving_pct) == pytest.approx((24_000, 36_000, 30))
    assert rest.saving_device_hours_per_day == pytest.approx(0.6 * line.saving_device_hours_per_day)


def test_a_saving_that_may_be_nothing_is_uncertain():
    grouped = by_loss([measured("ESP402", 30_000, low_us=0), measured("ESP601", 5_000)], None)
    assert [one.id for one in grouped.findings] == ["ESP601"]
    assert [one.id for one in grouped.uncertain] == ["ESP402"]


def test_an_interval_wider_than_its_saving_is_not_first():
    assert [id for id, *_ in listed(measured("ESP402", 30_000, 10_000, 50_000), measured("ESP601", 5_000))] == [
        "ESP601",
        "ESP402",
    ]


@pytest.mark.parametrize(("pct", "first"), [(MIN_PCT_BEFORE_BOUNDS, "ESP601"), (MIN_PCT_BEFORE_BOUNDS / 2, "ESP301")])
def test_a_bound_follows_causes_of_some_size(pct, first):
    found = listed(measured("ESP301", 40_000, is_bound=True), measured("ESP601", pct / 100 * STEP_US))
    assert found[0][0] == first


def test_a_vague_cause_precedes_a_narrow_bound():
    vague, bound = measured("ESP101", 30_000, 9_000, 51_000), measured("ESP401", 20_000, is_bound=True)
    assert [id for id, *_ in listed(vague, bound)] == ["ESP101", "ESP401"]


def test_what_a_cause_may_save_beyond_its_prediction_does_not_count_against_it():
    wide, narrow = measured("ESP101", 30_000, 16_000, 90_000), measured("ESP402", 20_000, 15_000, 25_000)
    assert [id for id, *_ in listed(wide, narrow)] == ["ESP101", "ESP402"]
    doubtful = measured("ESP101", 30_000, 14_000, 46_000)
    assert [id for id, *_ in listed(doubtful, narrow)] == ["ESP402", "ESP101"]


def test_a_vague_cause_of_little_precedes_no_bound():
    vague, bound = measured("ESP101", 2_000, 100, 3_900), measured("ESP401", 20_000, is_bound=True)
    assert [id for id, *_ in listed(vague, bound)] == ["ESP401", "ESP101"]


class Priced:
    """Prices by scenario, in µs."""

    def __init__(self, **savings_us: float) -> None:
        self._savings = savings_us

    def saving_ns(self, scenario: str) -> float:
        return 1000 * self._savings["_and_".join(term.partition("=")[0] for term in scenario.split(","))]


@pytest.mark.parametrize(
    ("joint_us", "first", "uncertain"), [(30_500, ("ESP101", ("ESP405",)), []), (38_000, ("ESP405", ()), ["ESP101"])]
)
def test_an_uncertain_cause_saves_at_least_the_certain_wait_that_it_would_end(joint_us, first, uncertain):
    """A slow loader hit one of four steps, but in each the ranks wait for something in `.item()`."""
    loader = measured("ESP101", 30_000, 0, 70_000, what_if="data=0")
    wait = measured("ESP405", 10_000, 9_000, 11_000, what_if="sync=0")
    grouped = by_loss([loader, wait], Priced(data=30_000, sync=10_000, data_and_sync=joint_us))
    assert (grouped.findings[0].id, tuple(one.id for one in grouped.findings[0].symptoms)) == first
    assert [one.id for one in grouped.uncertain] == uncertain
    assert grouped.findings[0].saving_low_us == 9_000


def test_a_finding_without_a_saving_stays_last():
    assert [id for id, *_ in listed(measured("ESP903", 0), measured("ESP601", 5_000))] == ["ESP601", "ESP903"]


def test_of_findings_without_a_saving_a_device_that_computes_all_the_time_is_first():
    assert [id for id, *_ in listed(measured("ESP703", 0), measured("ESP704", 0))] == ["ESP704", "ESP703"]


def test_every_id_in_the_order_is_a_finding():
    assert set(UPSTREAM_FIRST) <= set(PAGES)
    assert len(UPSTREAM_FIRST) == len(set(UPSTREAM_FIRST))


@pytest.mark.parametrize(
    ("shape", "seed", "cause", "symptoms"),
    [
        ("interleaved", 112, ("ESP201", (1,)), {"ESP405"}),  # The peers of a late rank wait for it in `.item()`.
        ("pipeline", 27, ("ESP101", (0, 1)), {"ESP405"}),  # Slow input data, and the `.item()` that waits for it.
        ("ddp", 84, ("ESP202", (2,)), set()),  # The script waits for its GPU every third step only.
    ],
)
def test_savings_add_up_to_no_more_than_all_fixes_together_save(tmp_path, shape, seed, cause, symptoms):
    """Simulated jobs (`benchmarks/known/`): replay of all findings at once, symptoms included."""
    replayed = simulated(shape, seed, tmp_path)
    diagnosis = diagnose_replayed(replayed, RecordedJob(replayed.run), NOTHING)
    causes = [finding for finding in diagnosis.findings if finding.saving_us]
    assert (causes[0].id, causes[0].ranks) == cause
    attached = [symptom for finding in causes for symptom in finding.symptoms]
    assert symptoms <= {symptom.id for symptom in attached}
    scenarios = dict.fromkeys(one.what_if for one in (*causes, *attached) if one.what_if)
    together_us = (replayed.pricer.saving_ns(",".join(scenarios)) or 0) / 1000
    assert 0 < diagnosis.joint_saving_us <= together_us * 1.001


def test_slow_steps_that_cost_much_of_the_run_come_first():
    slow, urgent = (
        msgspec.structs.replace(measured("ESP804", 0.0), severity=severity) for severity in ("warning", "critical")
    )
    line = measured("ESP402", 19_500)
    assert [one.severity for one in by_loss((line, slow, urgent), None).findings] == ["critical", "info", "warning"]
