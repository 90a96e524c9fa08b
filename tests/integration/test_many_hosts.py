"""Jobs on several ranks and hosts, recorded for real: windows at the same step, and clocks that were set wrong, found."""

import json
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from benchmarks.testbed import BedUnavailable, hosts
from esprof import load
from esprof.core.types import NS_PER_MS
from esprof.recorder.launcher.order_window import attach
from esprof.replay.replayed import Replayed, answer
from esprof.run.merge import merge
from tests.cases.record import ESPROF, JOBS, environment, recording, torchrun
from tests.integration.test_clock_recovery import calls_of, clocks_of

pytestmark = [pytest.mark.integration, pytest.mark.usefixtures("no_other_beds")]

WINDOW = {"warmup": 1, "steps": 6, "stack_steps": 0}


def timed_windows(run):
    """The recorded steps of each rank."""
    return [[(w.first, w.last) for w in rank.windows if not w.stacks] for rank in run.meta.ranks]


@pytest.fixture
def flight(tmp_path):
    """A job on three ranks with the flight recorder, for as long as it is needed."""
    out = tmp_path / "run"
    command = torchrun("train.py", "--steps", 100_000, "--pause", 0.03)
    command[command.index("--nproc-per-node=2")] = "--nproc-per-node=3"
    launcher = subprocess.Popen(
        recording(out, command, flight=1000, **WINDOW), env=environment(), stdout=subprocess.DEVNULL
    )
    wait_for(lambda: len(list(out.glob("raw/rank-*.roll.0.jsonl"))) == 3)
    yield out, launcher
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(60)


def wait_for(condition, seconds=300):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_window_on_demand_is_at_the_same_step_on_all_ranks(flight):
    out, launcher = flight
    asked = attach(out, timeout_s=300)
    assert asked.whole
    at = asked.ranks[0].steps[1] + 300
    assert attach(out, at, timeout_s=300).whole
    launcher.send_signal(signal.SIGUSR2)
    wait_for(lambda: all(log.read_text().count('"window"') == 3 for log in out.glob("raw/rank-0000?.jsonl")))
    launcher.send_signal(signal.SIGTERM)
    launcher.wait(60)
    windows = timed_windows(load(out))
    assert windows[0] == windows[1] == windows[2]
    assert windows[0][:2] == [asked.ranks[0].steps, (at + 1, at + 6)]
    assert all(last - first == 5 for first, last in windows[0])


def test_windows_by_time_are_at_the_same_steps_on_all_ranks(tmp_path):
    out = tmp_path / "run"
    command = recording(out, torchrun("train.py", "--steps", 250, "--pause", 0.03), skip="1s", every="2s", **WINDOW)
    subprocess.run(command, env=environment(), stdout=subprocess.DEVNULL, timeout=300, check=True)
    first, second = timed_windows(load(out))
    assert len(first) >= 2
    assert first == second


def test_launchers_of_one_rank_each_record_the_same_window_and_are_merged(tmp_path):
    out = tmp_path / "run"
    job = [sys.executable, str(JOBS / "train.py"), "--steps", "100000", "--pause", "0.02"]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    launchers = [
        subprocess.Popen(
            recording(out, job, flight=1000, **WINDOW),
            env=environment(RANK=str(rank), **shared),
            stdout=subprocess.DEVNULL,
        )
        for rank in range(2)
    ]
    wait_for(lambda: len(list(out.glob("part-*/raw/rank-*.roll.0.jsonl"))) == 2)
    assert attach(out, timeout_s=300).whole
    launchers[1].send_signal(signal.SIGUSR2)
    wait_for(lambda: all(log.read_text().count('"window"') == 2 for log in out.glob("part-*/raw/rank-0000?.jsonl")))
    for launcher in launchers:
        launcher.send_signal(signal.SIGTERM)
        launcher.wait(60)
    run = merge([out], tmp_path / "whole")
    assert run.ranks == [0, 1]
    # The second launcher may be at work already, since its rank misses the first one's, and be ended in the midst of it.
    assert {warning.code for warning in run.warnings} <= {"rank-killed", "launcher-gone"}, run.warnings
    first, second = timed_windows(run)
    assert len(first) == 2
    assert first == second


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


LAUNCH = """
import sys
from pathlib import Path
from esprof.run.raw.settings import Settings
from esprof.recorder.launcher.launch import launch, prepare
settings = Settings(skip=80, warmup=1, steps=20, stack_steps=0)
raw = prepare(sys.argv[2:], Path(sys.argv[1]), settings)
sys.exit(launch(sys.argv[2:], raw))
"""
"""Records as `esprof record` does, and leaves what was noted as it was noted."""

OTHER_MACHINE = 'hostname "$1" && mount --bind "$2" /proc/sys/kernel/random/boot_id && shift 2 && exec "$@"'


@pytest.fixture(scope="module")
def left(tmp_path_factory):
    """What two launchers, each on its host with a disk of its own, left of one job: the `raw` of each."""
    folder = tmp_path_factory.mktemp("hosts")
    job = [sys.executable, str(JOBS / "rendezvous.py"), "130", "0.01"]
    try:
        with hosts(cpu=[0.7, 0.7], rate=["1gbit", "1gbit"]) as bed:
            shared = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "1", "LOCAL_RANK": "0"}
            shared |= {"MASTER_ADDR": bed.hosts[0].address, "MASTER_PORT": "29400"}
            launchers = []
            for index in bed.hosts:
                boot_id = folder / f"boot-id-{index}"
                boot_id.write_text(f"machine {index}\n")
                machine = ["unshare", "--uts", "--mount", "sh", "-c", OTHER_MACHINE, "sh", f"node{index}", str(boot_id)]
                launcher = [sys.executable, "-c", LAUNCH, str(folder / f"node{index}"), *job]
                launchers.append(bed.run(index, [*machine, *launcher], shared | {"RANK": str(index)}))
            assert [launcher.wait(300) for launcher in launchers] == [0, 0]
    except BedUnavailable as missing:
        pytest.skip(str(missing))
    return folder


def shift(raw, show):
    """Make the clock of the only rank in `raw` have shown `show(time)` where it showed `time`."""
    [log] = raw.glob("rank-?????.jsonl")
    for file in (log, *raw.glob("rank-*.roll.*.jsonl")):
        rows = [_shifted(json.loads(line), show) for line in file.read_text().splitlines()]
        file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for file in raw.glob("rank-*.timed.*.json"):
        trace = json.loads(file.read_text())
        base = trace["baseTimeNanoseconds"]
        for event in trace["traceEvents"]:
            if "ts" in event:
                start = base + round(event["ts"] * 1000)
                end = start + round(event.get("dur", 0) * 1000)
                event["ts"] = (show(start) - base) / 1000
                if "dur" in event:
                    event["dur"] = (show(end) - show(start)) / 1000
        file.write_text(json.dumps(trace))
    for file in raw.glob("rank-*.calls.*.json"):
        calls = json.loads(file.read_text())
        for entry in calls["entries"]:
            entry["time_created_ns"] = show(entry["time_created_ns"])
        file.write_text(json.dumps(calls))


MOMENTS = {"steps": (1,), "nexts": (6, 7), "memories": (2,), "samples": (0,), "stages": (1, 2), "modules": ()}
"""Where in the rolling rows times stand."""


def _shifted(row, show):
    match row:
        case {"kind": "clock", "at_ns": at, "offset_ns": offset}:
            return row | {"at_ns": show(at), "offset_ns": offset + show(at) - at}
        case {"kind": kind, "rows": rows}:
            for one in rows:
                for place in MOMENTS[kind]:
                    one[place] = show(one[place])
    return row


def joined(left, tmp_path, show, *, without_clock=False):
    """The whole Run, with the clock of node1 set wrong. Each launcher's part is finished when it is opened."""
    parts = [Path(shutil.copytree(left / name, tmp_path / name)) for name in ("node0", "node1")]
    shift(parts[1] / "raw", show)
    if without_clock:
        log = parts[1] / "raw" / "rank-00001.jsonl"
        log.write_text("".join(f"{line}\n" for line in log.read_text().splitlines() if '"clock"' not in line))
    return merge(parts, tmp_path / "whole")


def true_steps(left):
    """When the steps of rank 1 began: both hosts of the bed have the clock of this machine."""
    lines = [json.loads(line) for file in left.glob("node1/raw/rank-*.roll.*.jsonl") for line in file.open()]
    return {step: start for line in lines if line["kind"] == "steps" for step, start, *_ in line["rows"]}


START_NS = time.time_ns()
WRONG = {
    "ahead": lambda at: at + 50 * NS_PER_MS,
    "behind": lambda at: at - 50 * NS_PER_MS,
    "drifting": lambda at: at + 50 * NS_PER_MS + (at - START_NS) // 50_000,
}
"""The last one gains 20 ppm."""


@pytest.mark.parametrize("show", WRONG.values(), ids=WRONG)
def test_a_wrong_clock_is_corrected_by_the_message_exchange_alone(left, tmp_path, show):
    run = joined(left, tmp_path, show)
    assert [rank.host for rank in run.meta.ranks] == ["node0", "node1"]
    meta = run.rank(1)
    truth = true_steps(left)
    steps = run.steps(1)
    wrong = steps.ints("start_ns") - np.array([truth[step] for step in steps.ints("step").tolist()])
    in_window = [status == "timed" for status in steps.texts("phase")]
    assert np.abs(wrong[in_window]).max() <= meta.clock_residual_ns
    assert meta.clock_residual_ns < 50 * NS_PER_MS, "no better known than it was wrong"
    assert run.rank(0).clock_offset_ns == run.rank(0).clock_residual_ns == 0


@pytest.mark.parametrize("without_clock", [False, True])
@pytest.mark.parametrize("show", WRONG.values(), ids=WRONG)
def test_collectives_correct_the_residual_of_the_message_exchange(left, tmp_path, show, without_clock):
    """With an exchange the clock is as right as that has promised. Without, it is as right as collectives can tell: the
    ranks leave one within its transfer, which nobody measures better than the rank that came last."""
    run = joined(left, tmp_path, show, without_clock=without_clock)
    assert ("clock-unknown" in {warning.code for warning in run.warnings}) == without_clock
    truth = true_steps(left)
    clocks = clocks_of(run)
    rows = run.steps(1).where(np.array([phase == "timed" for phase in run.steps(1).texts("phase")]))
    aligned = clocks.apply(1, rows.ints("start_ns"))
    base = clocks.correction_ns(0)
    wrong = aligned - base - np.array([truth[step] for step in rows.ints("step").tolist()])
    allowed = np.median(calls_of(run).shortest_ns) if without_clock else run.rank(1).clock_residual_ns
    assert abs(np.median(wrong)) <= allowed < 50 * NS_PER_MS


@pytest.mark.parametrize("show", WRONG.values(), ids=WRONG)
def test_the_merged_run_replays(left, tmp_path, show):
    run = joined(left, tmp_path, show)
    assert len(calls_of(run).rank) >= 2 * 10 * 15
    replayed = answer(Replayed.of(run))
    assert replayed.coverage.collectives_matched == replayed.coverage.collectives > 0
    assert len(replayed.steps) >= 10
    assert max(abs(step.error_pct) for step in replayed.steps) <= 2


def test_merge_reports_the_clock_offsets(left, tmp_path):
    parts = [Path(shutil.copytree(left / name, tmp_path / "parts" / f"part-{name}")) for name in ("node0", "node1")]
    shift(parts[1] / "raw", WRONG["ahead"])
    done = subprocess.run(
        [*ESPROF, "merge", str(tmp_path / "parts"), "-o", str(tmp_path / "whole")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == ""
    assert "rank 0 on node0: clock offset +0.000 ms from rank 0, within 0 µs" in done.stderr
    ahead_ms, within_us = re.search(
        r"rank 1 on node1: clock offset (\S+) ms from rank 0, within (\d+) µs", done.stderr
    ).groups()
    assert abs(float(ahead_ms) - 50) <= (float(within_us) + 1) / 1000
    assert load(tmp_path / "whole").ranks == [0, 1]
