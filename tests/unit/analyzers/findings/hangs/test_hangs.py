"""ESP801–805 and ESP808: flight recordings of jobs that hung, lost a rank, or had slow steps."""

import msgspec
import pytest

from esprof.analyzers import diagnose
from esprof.analyzers.evidence import Evidence, by_rank, by_step
from esprof.analyzers.finding import Diagnosis
from esprof.analyzers.findings import PAGES
from esprof.core.types import NS_PER_MS as MS
from esprof.reports.terminal.diagnosis import draw_diagnosis, draw_verdict
from esprof.run.flight.log import FlightLog, Worker
from tests.cases.flight import SEEN_NS, SEGV_TEXT, SIGTERM_TEXT, S, call, killed, run_of_flight, snapshot
from tests.cases.graph import ddp_rank, run_of

WAITING = snapshot(0, [call(1), call(2, over=False)], location=("train.py", 20, "step"))
ELSEWHERE = snapshot(1, [call(1)], location=("data.py", 88, "read"))


def only(run):
    findings = diagnose(run).findings
    assert len(findings) == 1, [finding.title for finding in findings]
    assert findings[0].id in PAGES
    return findings[0]


def test_a_hang_is_reported_with_the_rank_its_line_and_the_collective():
    run = run_of_flight({0: killed(WAITING, fatal=SIGTERM_TEXT), 1: killed(ELSEWHERE, fatal=SIGTERM_TEXT)})
    found = only(run)
    assert (found.id, found.severity, found.ranks) == ("ESP801", "critical", (1,))
    assert found.title == "The job hung in step 9: rank 1 did not enter all_reduce 2, which rank 0 waits in"
    evidence = found.evidence
    assert {key: evidence[key].value for key in ("step", "group", "number", "collective", "size")} == {
        "step": 9, "group": (0, 1), "number": 2, "collective": "all_reduce", "size": 2048,
    }  # fmt: skip
    assert (evidence["entered_by"].value, evidence["missing"].value) == ((0,), (1,))
    assert evidence["waited"].value == pytest.approx(6_000 * MS, abs=10 * MS)
    assert evidence["stacks"] == by_rank({1: "data.py(88): read", 0: "train.py(20): step"})


def test_the_verdict_contains_the_location_of_the_rank_and_needs_no_window():
    diagnosis = diagnose(run_of_flight({0: killed(WAITING), 1: killed(ELSEWHERE)}))
    assert diagnosis.verdict.endswith("which rank 0 waits in. Rank 1 is at data.py(88): read.")
    assert (diagnosis.steps, diagnosis.breakdown, diagnosis.replay_error_pct) == ((), (), None)
    assert diagnosis.step_us == 10_000
    assert diagnosis.throughput.steps_per_s == 100
    assert msgspec.json.decode(msgspec.json.encode(diagnosis), type=Diagnosis) == diagnosis


def test_a_job_that_still_runs_hangs():
    run = run_of_flight({0: killed(WAITING, alive=True), 1: killed(ELSEWHERE, alive=True)})
    assert only(run).title.startswith("The job hangs in step 9: rank 1 did not enter all_reduce 2")


def test_a_hang_comes_before_the_costs_of_a_replayed_run():
    replayed = run_of({0: ddp_rank(), 1: ddp_rank(slow=30)})
    hung = {0: killed(WAITING), 1: killed(ELSEWHERE)}
    run = type(replayed)(replayed.meta, replayed._read, flight=hung.get)
    diagnosis = diagnose(run)
    assert diagnosis.findings[0].id == "ESP801"
    assert diagnosis.findings[1:] == diagnose(replayed).findings != ()
    assert diagnosis.verdict.startswith("The job hung in step 9")
    assert diagnosis.breakdown


def test_mismatched_collectives_are_reported_with_the_first_difference():
    other = snapshot(1, [call(1), call(2, "broadcast", 7, over=False)])
    found = only(run_of_flight({0: killed(WAITING), 1: killed(other)}))
    assert (found.id, found.ranks) == ("ESP802", (1,))
    assert found.evidence["mismatch_in_group"] == Evidence((0, 1), "ranks")
    assert found.evidence["mismatch_number"].value == 2
    assert found.evidence["odd_ranks"] == Evidence((1,), "ranks")
    assert found.evidence["odd_ranks_entered"].value == "broadcast of 28 B"
    assert found.evidence["others_entered"].value == "all_reduce of 2.0 KiB"
    assert found.evidence["skipped_one"].value is False


def test_a_mismatch_that_crashed_the_ranks_is_found_in_the_collectives_that_they_entered():
    calls = ([call(1), call(2)], [call(1), call(2, elements=7)])
    ended = {
        rank: FlightLog(snapshots=(snapshot(rank, made, reason="error", error="RuntimeError: unmatched"),))
        for rank, made in enumerate(calls)
    }
    assert only(run_of_flight(ended)).id == "ESP802"


def test_a_collective_that_all_entered_points_to_the_network():
    stuck = [killed(snapshot(rank, [call(1, over=False)])) for rank in (0, 1)]
    assert only(run_of_flight(dict(enumerate(stuck)))).id == "ESP805"


def test_a_rank_that_crashed_is_reported_and_those_that_the_launcher_ended_are_not():
    found = only(run_of_flight({0: killed(fatal=SIGTERM_TEXT), 1: killed(fatal=SEGV_TEXT)}))
    assert (found.id, found.ranks) == ("ESP803", (1,))
    assert found.title == "Rank 1 died in step 9: Segmentation fault"
    assert found.evidence["stacks"] == by_rank({1: "/job/train.py(88): step"})


def test_a_rank_that_vanished_is_reported_even_if_its_last_steps_were_not_written():
    found = only(run_of_flight({0: killed(fatal=SIGTERM_TEXT), 1: killed()}))
    assert (found.id, found.ranks) == ("ESP803", (1,))


def test_only_the_first_rank_that_an_exception_ended_is_reported():
    errors = [
        snapshot(rank, [], reason="error", error=error, at_ns=SEEN_NS + at)
        for rank, error, at in ((0, "RuntimeError: Connection closed by peer", 5), (1, "ValueError: bad sample", 1))
    ]
    found = only(run_of_flight({one.rank: FlightLog(snapshots=(one,)) for one in errors}))
    assert (found.id, found.ranks) == ("ESP803", (1,))
    assert "ValueError: bad sample" in found.title


def test_a_rank_that_ended_early_is_reported_and_the_one_that_lost_its_connection_is_not():
    lost = snapshot(0, [call(2)], reason="error", error="RuntimeError: Connection closed by peer [127.0.0.1]:5548")
    found = only(run_of_flight({0: FlightLog(snapshots=(lost,)), 1: FlightLog()}))
    assert (found.id, found.ranks) == ("ESP801", (1,))
    assert found.title == "Rank 1 ended after step 8, but rank 0 entered another collective with it"


def interrupted(rank, calls):
    return snapshot(rank, calls, reason="error", error="KeyboardInterrupt")


@pytest.mark.parametrize(
    "logs",
    [
        {0: FlightLog(), 1: FlightLog()},
        {0: killed(fatal=SIGTERM_TEXT), 1: killed(fatal=SIGTERM_TEXT)},
        {0: killed(), 1: killed()},
        {0: killed(alive=True), 1: killed(alive=True)},
        {rank: FlightLog(snapshots=(interrupted(rank, []),)) for rank in (0, 1)},
        # A long validation at the end of a job, for which no rank waits.
        {rank: FlightLog(snapshots=(snapshot(rank, [call(1)]),)) for rank in (0, 1)},
        # An exception while a bucket was being sent.
        {0: FlightLog(), 1: FlightLog(snapshots=(interrupted(1, [call(1, over=False)]),))},
    ],
    ids=["normal end", "ended from outside", "all killed", "running", "Ctrl-C", "long end", "Ctrl-C in a collective"],
)  # fmt: skip
def test_a_job_that_ended_normally_or_from_outside_has_no_finding(logs):
    assert diagnose(run_of_flight(logs)).findings == ()


def test_a_rank_that_was_late_but_arrived_is_reported_as_a_slow_step():
    ended = {one.rank: FlightLog(snapshots=(one,)) for one in (WAITING, ELSEWHERE)}
    found = only(run_of_flight(ended, last_step=20, long_steps={9: 8 * S}))
    assert (found.id, found.severity, found.ranks, found.confidence) == ("ESP804", "critical", (1,), "high")
    assert found.title == "Step 9 took 8,000 ms instead of 10.0 ms: rank 1 delayed the others at data.py(88): read"
    assert found.evidence["took"] == by_step({9: 8_000 * MS}, "ns")
    assert found.evidence["lost_in_total"] == Evidence(7_990 * MS, "ns")


@pytest.mark.parametrize(("steps", "severity"), [(3_190, "critical"), (3_210, "warning")])
def test_a_slow_step_that_costs_less_than_a_fifth_of_the_job_is_a_warning(steps, severity):
    """Steps of 10 ms, and one of 8 s."""
    ended = {one.rank: FlightLog(snapshots=(one,)) for one in (WAITING, ELSEWHERE)}
    assert only(run_of_flight(ended, last_step=steps, long_steps={9: 8 * S})).severity == severity


def test_slow_steps_at_one_location_are_one_finding():
    snapshots = [
        snapshot(0, [], step=step, location=("data.py", 88, "read"), reason="slow", at_ns=step * 10_000_000 + S)
        for step in (9, 12, 15)
    ]
    found = only(run_of_flight({0: FlightLog(snapshots=tuple(snapshots))}, last_step=20, long_steps={12: 3 * S}))
    assert found.title == "3 steps took up to 3,000 ms instead of 10.0 ms: rank 0 was at data.py(88): read"
    assert found.confidence == "medium"


def test_a_slow_step_that_costs_the_job_little_is_not_reported():
    slow = snapshot(0, [], step=12, reason="slow", at_ns=12 * 10_000_000 + 35_000_000)
    assert diagnose(run_of_flight({0: FlightLog(snapshots=(slow,))}, last_step=1000)).findings == ()


def test_a_collective_that_has_just_started_is_not_the_cause_of_a_slow_step():
    late = SEEN_NS - 1_000_000
    pair = (
        snapshot(0, [call(1, over=False, at_ns=late)], reason="slow"),
        snapshot(1, [], reason="slow"),
    )
    found = only(run_of_flight({one.rank: FlightLog(snapshots=(one,)) for one in pair}, last_step=20))
    assert (found.id, found.ranks) == ("ESP804", (0, 1))


def test_a_run_without_windows_and_faults_reports_the_step_time():
    diagnosis = diagnose(run_of_flight({0: FlightLog()}))
    assert diagnosis.verdict.startswith("A step takes 10.0 ms. No window was recorded")


def test_a_rank_without_known_steps_has_a_diagnosis():
    diagnosis = diagnose(run_of_flight({0: FlightLog()}, last_step=0))
    assert (diagnosis.verdict, diagnosis.step_us) == ("No step ended, and no window was recorded.", None)


def test_the_terminal_shows_a_hang_without_a_breakdown_and_escapes_names():
    location = ("/job/\x1b[31mtrain.py", 20, "step\x1b[0m")
    moved = msgspec.structs.replace(ELSEWHERE, threads=snapshot(1, [], location=location).threads)
    diagnosis = diagnose(run_of_flight({0: killed(WAITING), 1: killed(moved)}))
    for text in (draw_diagnosis(diagnosis), draw_verdict(diagnosis)):
        assert "The job hung in step 9" in text
        assert "Where a step goes" not in text
        assert "10.0 ms on 2 ranks (mean of all)" in text
        assert "\x1b" not in text
    assert len(draw_verdict(diagnosis).splitlines()) <= 20


def at_start(rank, **fields):
    """The log of a rank that made no progress, ended no step, and was in no process group."""
    fields = {"lingers": True, "stands_still": True, "same_place_ns": 61 * S, "world_size": 2} | fields
    one = msgspec.structs.replace(snapshot(rank, [], step=0, **fields), groups=())
    return killed(one, fatal=SIGTERM_TEXT, starting=True)


def of_start(logs):
    return only(run_of_flight(logs, last_step=0))


def test_a_rank_that_did_not_join_the_process_group_is_reported_with_its_line():
    found = of_start({0: at_start(0, joins=True), 1: at_start(1, location=("data.py", 7, "download"))})
    assert (found.id, found.ranks, found.confidence) == ("ESP801", (1,), "high")
    assert found.title == (
        "The job hung before its first step: rank 1 did not enter init_process_group, which rank 0 waits in"
    )
    assert found.evidence["waited"] == Evidence(61 * S, "ns")
    assert found.evidence["stacks"].of(1) == "data.py(7): download"


@pytest.mark.parametrize(("alive", "when"), [(False, "The job hung in step 9"), (True, "The job hangs in step 9")])
def test_a_rank_that_waits_for_a_loader_worker_is_reported_with_that_worker(alive, when):
    worker = Worker(worker=1, pid=7, dump=SIGTERM_TEXT)
    one = snapshot(0, [call(1)], lingers=True, stands_still=True, same_place_ns=61 * S, workers=(worker,), world=1)
    found = only(run_of_flight({0: killed(one, alive=alive)}))
    assert (found.id, found.title) == ("ESP808", f"{when}: rank 0 waits for a worker of its data loader")
    assert found.evidence["stacks"].of(0).endswith("(process 7), which is at /job/train.py(88): step")


def test_a_job_that_was_stopped_while_it_started_did_not_hang():
    """By Ctrl-C or SIGTERM, before any rank made no progress for long."""
    interrupted = snapshot(
        0, [], step=0, reason="error", error="KeyboardInterrupt: ", location=("train.py", 3, "build")
    )
    found = of_start(
        {0: FlightLog(snapshots=(interrupted,), starting=True), 1: killed(fatal=SIGTERM_TEXT, starting=True)}
    )
    assert (found.id, found.confidence, found.ranks) == ("ESP808", "low", (0, 1))
    assert found.title == "The job was stopped before its first step ended"
    assert found.evidence["stacks"] == by_rank({0: "train.py(3): build", 1: "/job/train.py(88): step"})


def test_a_rank_that_raised_in_its_first_step_is_reported_and_those_that_the_launcher_ended_are_not():
    raised = snapshot(1, [], step=0, reason="error", error="ValueError: no such file")
    found = of_start({0: killed(fatal=SIGTERM_TEXT, starting=True), 1: FlightLog(snapshots=(raised,), starting=True)})
    assert (found.id, found.ranks) == ("ESP803", (1,))
    assert found.title == "Rank 1 died before its first step ended: ValueError: no such file"
