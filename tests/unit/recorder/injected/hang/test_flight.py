"""When a rank takes snapshots of itself, and what is in them."""

import json
import threading
from collections import deque

import pytest

from esprof.recorder.injected.hang import flight
from esprof.recorder.injected.hang.flight import FlightWatch, Usual
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.state import StepState
from esprof.run.flight.log import FlightLog, read_flight
from esprof.run.raw import names
from esprof.run.raw.settings import Settings

S = 1_000_000_000
STEP_NS = 10_000_000


class Counted(deque):
    """Counts how often its steps are gone through."""

    reads = 0

    def __iter__(self):
        Counted.reads += 1
        return super().__iter__()


class Rank:
    """A rank at `step`, after steps of 10 ms, and a watch whose clock the test sets."""

    def __init__(self, raw, *, steps=200, step=300, hang_s=5.0):
        self.raw = raw
        self.state = StepState()
        self.state.rank, self.state.world_size = 1, 2
        self.state.step, self.state.start_ns = step, 1000 * S
        self.state.thread = threading.get_ident()
        self.state.recent = Counted([STEP_NS] * steps)
        Counted.reads = 0
        self.watch = FlightWatch(str(raw), self.state, Log(), Settings(hang_s=hang_s))

    def look(self, after_s):
        """A tick, so long after the step began."""
        self.watch.tick(self.state.start_ns + round(after_s * S))

    def next_step(self):
        self.state.start_ns += 60 * S
        self.state.step += 1

    @property
    def log(self) -> FlightLog:
        return read_flight(self.raw, names.files_of(1), ended=False)

    @property
    def reasons(self):
        return [snapshot.reason for snapshot in self.log.snapshots]


@pytest.fixture
def raw(tmp_path, monkeypatch):
    # The handlers of signals are pytest's own to keep.
    monkeypatch.setattr(flight, "note_fatal_signals", lambda path: None)
    (tmp_path / "orders").mkdir()
    return tmp_path


def test_usual_steps_leave_no_trace_and_are_not_gone_through_at_each_tick(raw):
    rank = Rank(raw)
    for _ in range(100):
        rank.look(0.005)
    assert rank.reasons == []
    assert Counted.reads <= 1


def test_a_slow_step_is_caught_while_it_lasts_and_once(raw):
    rank = Rank(raw)
    for after_s in (0.02, 0.25, 0.5, 0.75):
        rank.look(after_s)
    (taken,) = rank.log.snapshots
    assert (taken.reason, taken.rank, taken.step, taken.since_ns) == ("slow", 1, 300, 1000 * S)
    assert (taken.usual_ns, taken.p99_ns) == (STEP_NS, STEP_NS)


def test_a_step_is_not_slow_by_less_than_twenty_milliseconds(raw):
    rank = Rank(raw)
    rank.look(0.029)
    assert rank.reasons == []


def test_few_steps_tell_nothing_of_slow_ones(raw):
    rank = Rank(raw, steps=49)
    rank.look(1)
    assert rank.reasons == []


def test_slow_snapshots_are_half_a_minute_apart(raw):
    rank = Rank(raw)
    for _ in range(3):
        rank.look(1)
        rank.state.start_ns += 11 * S
        rank.state.step += 1
    rank.look(1)
    assert len(rank.reasons) == 2


def test_steps_that_have_become_slower_are_usual_again(raw):
    rank = Rank(raw)
    rank.look(0.005)
    rank.state.recent = Counted([20 * STEP_NS] * 200)
    rank.next_step()
    rank.look(0.3)
    assert rank.reasons == []


def test_a_step_that_may_hang_is_caught_once_while_nothing_moves(raw):
    rank = Rank(raw, steps=0)
    for after_s in (4.9, 5.1, 6, 60, 600):
        rank.look(after_s)
    assert rank.reasons == ["hang"]
    rank.next_step()
    rank.look(5.1)
    assert rank.reasons == ["hang", "hang"]


def test_a_job_of_long_steps_is_given_three_times_the_longest(raw):
    rank = Rank(raw, steps=0)
    rank.state.recent = deque([1 * S, 4 * S])
    rank.look(11.9)
    assert rank.reasons == []
    rank.look(12.1)
    assert rank.reasons == ["hang"]


def test_collectives_that_move_in_a_long_step_and_stop_again_are_another_hang(raw, monkeypatch):
    rank = Rank(raw, steps=0)
    status = iter([b"1", b"2", b"3", b"3", b"3", b"3"])
    monkeypatch.setattr(flight, "collective_progress", lambda: next(status))
    for after_s in (6, 8, 10, 12, 15.1, 100):
        rank.look(after_s)
    assert rank.reasons == ["hang", "hang"]


def test_zero_seconds_switch_the_watch_for_hangs_off(raw):
    rank = Rank(raw, steps=0, hang_s=0)
    rank.look(10_000)
    assert rank.reasons == []


def test_no_step_no_hang(raw):
    rank = Rank(raw, step=0)
    rank.look(10_000)
    assert rank.reasons == []


def test_a_snapshot_holds_the_stack_of_each_thread_and_says_which_one_trains(raw):
    release = threading.Event()
    other = threading.Thread(target=release.wait, name="reader")
    other.start()
    try:
        rank = Rank(raw, steps=0)
        writer = threading.Thread(target=rank.look, args=(6,))
        writer.start()
        writer.join()
    finally:
        release.set()
        other.join()
    (taken,) = rank.log.snapshots
    assert [thread.name for thread in taken.threads if thread.training] == ["MainThread"]
    assert taken.location.function == test_a_snapshot_holds_the_stack_of_each_thread_and_says_which_one_trains.__name__
    reader = next(thread for thread in taken.threads if thread.name == "reader")
    assert [frame.function for frame in reader.frames][:2] == ["wait", "wait"]
    assert writer.name not in {thread.name for thread in taken.threads}


def test_the_launcher_may_ask_for_a_snapshot_and_other_orders_are_not_ours(raw):
    rank = Rank(raw)
    rank.look(0.001)
    (raw / "orders" / "1.json").write_text(json.dumps({"at": None}))
    rank.look(0.002)
    assert rank.reasons == []
    (raw / "orders" / "2.json").write_text(json.dumps({"snapshot": True}))
    for _ in range(3):
        rank.look(0.003)
    assert rank.reasons == ["asked"]


def test_snapshots_are_bounded_and_those_of_slow_steps_go_first(raw):
    rank = Rank(raw)
    rank.look(6)
    assert rank.reasons == ["hang"]
    for _ in range(20):
        rank.next_step()
        rank.look(1)
    assert rank.reasons.count("slow") == 15
    for _ in range(16):
        rank.next_step()
        rank.look(6)
    assert rank.reasons == ["hang"] * 16
    assert rank.log.snapshots[-1].step == rank.state.step


def test_writing_a_trace_of_ours_is_no_slow_step_of_the_job(raw, monkeypatch):
    monkeypatch.setattr(flight, "_WINDOW_CODE", (__file__,))
    rank = Rank(raw)
    rank.look(600)
    assert rank.reasons == []


def test_the_files_are_for_the_user_alone(raw):
    rank = Rank(raw)
    rank.look(6)
    (file,) = raw.glob("flight-*")
    assert file.name == "flight-00001.0.json"
    assert file.stat().st_mode & 0o777 == 0o600


def test_the_exception_that_ends_the_process_is_stored(raw, monkeypatch):
    rank = Rank(raw)
    rank.watch.close()
    assert rank.reasons == []
    try:
        int("many")
    except ValueError as error:
        monkeypatch.setattr("sys.last_value", error, raising=False)
    rank.watch.close()
    (taken,) = rank.log.snapshots
    assert (taken.reason, taken.error_type) == ("error", "ValueError")
    assert taken.error == "ValueError: invalid literal for int() with base 10: 'many'"
    assert taken.location.function == "test_the_exception_that_ends_the_process_is_stored"


def test_the_ninety_ninth_percentile_is_of_the_steps_before():
    assert Usual.of(range(1, 101)).p99_ns == 99
    assert Usual.of([]) == Usual()


def test_a_snapshot_tells_of_the_latest_steps_what_reading_expects_however_much_is_noted(raw):
    rank = Rank(raw)
    noted = (298, 980 * S, STEP_NS, "plain")
    rank.watch._log.roll("steps", (*noted, 9_000_000, 100_000, None))
    rank.look(after_s=1)
    (snapshot,) = rank.log.snapshots
    assert snapshot.steps == (noted,)
