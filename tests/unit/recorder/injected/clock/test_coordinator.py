"""Rank 0 and another rank over a real socket, with the time that passes made by hand."""

import json
import socket
import time
from contextlib import closing
from types import SimpleNamespace

import pytest

from esprof.core.types import NS_PER_MS, NS_PER_S
from esprof.recorder.injected.clock import coordinator
from esprof.recorder.injected.clock.channel import ChannelReading, ChannelServer, Client, WindowRequest
from esprof.recorder.injected.clock.coordinator import Follower, Leader, interval_s
from esprof.recorder.injected.clock.readings import ClockNotes
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.injected.state import StepState
from esprof.recorder.injected.windows.schedule import WindowSchedule
from esprof.recorder.launcher.order_window import order_window
from esprof.run.raw.settings import Settings

NOW = 1_700_000_000 * NS_PER_S
ON_DEMAND = Settings(windows=False, warmup=1, steps=2, stack_steps=0)


@pytest.fixture
def server():
    with closing(ChannelServer(one_machine=True)) as made:
        yield made


@pytest.fixture
def client(server):
    with closing(Client(server.address)) as made:
        yield made


def noted(log_path, kind):
    rows = map(json.loads, log_path.read_text().splitlines())
    return [row for row in rows if row.pop("kind") == kind]


class Rank:
    """What the recorder keeps of one rank: in `raw`, at `step`, with steps of `usual_ms`."""

    def __init__(self, raw, rank=0, world_size=2, step=10, usual_ms=100, settings=ON_DEMAND):
        self.raw, self.settings = raw, settings
        raw.mkdir(exist_ok=True)
        self.state = StepState()
        self.state.rank, self.state.world_size, self.state.step = rank, world_size, step
        self.state.recent.extend([usual_ms * NS_PER_MS] * 5)
        self.schedule = WindowSchedule(settings)
        self.log = Log()
        self.log.open(str(raw / f"rank-{rank:05d}"), 1 << 20)

    def leader(self, server=None, now_ns=NOW):
        return Leader(str(self.raw), self.state, self.schedule, self.settings, now_ns, server)

    def follower(self, now_ns=NOW):
        return Follower(str(self.raw), self.state, self.log, self.schedule, now_ns)

    def noted(self, kind):
        return noted(self.raw / f"rank-{self.state.rank:05d}.jsonl", kind)

    @property
    def windows(self):
        """The steps in which windows begin."""
        bases = {self.schedule.base(step) for step in range(self.state.step, self.state.step + 2000)}
        return sorted(bases - {None})


def exchange(leader, follower, seconds, now_ns=NOW):
    """Let both tick for so long, four times a second."""
    for tick in range(int(4 * seconds)):
        moment = now_ns + tick * NS_PER_S // 4
        follower.tick(moment)
        leader.tick(moment)
    return now_ns + round(seconds * NS_PER_S)


@pytest.fixture
def published(monkeypatch, server):
    """Rank 0's address is in the job's store."""
    monkeypatch.setattr(coordinator, "_address_in_store", lambda: server.address)


@pytest.fixture
def elsewhere(monkeypatch, server):
    """The same, and rank 0 is on another machine."""
    address = json.dumps(json.loads(server.address) | {"machine": "another"})
    monkeypatch.setattr(coordinator, "_address_in_store", lambda: address)


def test_a_reading_is_within_its_error_however_late_both_sides_read(server, client):
    time.sleep(0.2)  # The kernel begins to note times a moment after it was asked to.
    client.ask(None)
    time.sleep(0.2)
    assert server.answer([]) == []
    time.sleep(0.2)
    [reading], orders = client.hear()
    assert orders == []
    assert 2 * abs(reading.offset_ns) <= reading.rtt_ns < 200 * NS_PER_MS
    assert client.hear() == ([], [])


def test_orders_and_requests_go_along(server, client):
    client.ask(WindowRequest(NOW, 0))
    client.ask(WindowRequest(NOW + 1, 70))
    assert server.answer([10, 20, 30, 40, 50]) == [WindowRequest(NOW, 0), WindowRequest(NOW + 1, 70)]
    assert client.hear()[1] == [20, 30, 40, 50]


def test_other_hosts_find_rank_0_by_the_address_that_leads_to_it():
    with closing(ChannelServer(one_machine=False)) as server:
        address = json.loads(server.address)
        assert address["addresses"]
        elsewhere = address | {"machine": "another", "addresses": ["127.0.0.9", *address["addresses"]]}
        with closing(Client(json.dumps(elsewhere))) as client:
            client.ask(None)
            server.answer([])
            client.hear()
            assert client.was_answered
            client.ask(None)
            server.answer([])
            assert len(client.hear()[0]) == 1


def test_strangers_get_no_answer(server):
    address = json.loads(server.address)
    with closing(Client(json.dumps(address | {"token": "00" * 16}))) as stranger:
        stranger.ask(WindowRequest(NOW, 1))
        assert server.answer([7]) == []
        assert stranger.hear() == ([], [])
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as plain:
        plain.bind(("127.0.0.1", 0))
        plain.setblocking(False)
        for size in (0, 1, 80, 200, 1400):
            plain.sendto(b"\0" * size, ("127.0.0.1", address["port"]))
        assert server.answer([7]) == []
        with pytest.raises(BlockingIOError):
            plain.recv(2000)


def test_an_answer_is_as_large_as_its_question_and_counts_once(server):
    address = json.loads(server.address)
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as wire, closing(Client(server.address)) as client:
        wire.bind(("127.0.0.1", 0))
        wire.settimeout(10)
        client._ways = [wire.getsockname()]
        client.ask(None)
        question, asker = wire.recvfrom(2000)
        wire.sendto(question, ("127.0.0.1", address["port"]))
        server.answer([7])
        answer = wire.recv(2000)
        assert len(answer) == len(question)
        for packet in (question, answer, answer):
            wire.sendto(packet, asker)
        readings, orders = client.hear()
        assert len(readings) == 1
        assert orders == [7]


def test_a_window_that_is_asked_for_begins_some_seconds_ahead(tmp_path):
    rank = Rank(tmp_path / "raw", usual_ms=100, step=10)
    leader = rank.leader()
    order_window(rank.raw)
    leader.tick(NOW)
    assert rank.windows == [10 + 30]
    leader.tick(NOW)
    assert rank.windows == [40]


def test_a_window_of_long_steps_begins_some_steps_ahead(tmp_path):
    rank = Rank(tmp_path / "raw", usual_ms=60_000)
    order_window(rank.raw)
    rank.leader().tick(NOW)
    assert rank.windows == [13]


def test_with_many_ranks_a_window_begins_when_all_have_asked(tmp_path):
    rank = Rank(tmp_path / "raw", world_size=2000)
    order_window(rank.raw)
    rank.leader().tick(NOW)
    assert rank.windows[0] >= 10 + 2 * interval_s(2000) * 10
    assert 2000 / interval_s(2000) <= 200


def test_a_requested_step_is_honoured_and_overlapping_windows_are_one(tmp_path):
    rank = Rank(tmp_path / "raw")
    leader = rank.leader()
    for at in (500, 501, 3, 42, 600):
        order_window(rank.raw, at)
    leader.tick(NOW)
    assert rank.windows == [40, 500, 600]


def test_no_window_is_ordered_before_steps_tell_how_long_they_take(tmp_path):
    rank = Rank(tmp_path / "raw")
    rank.state.recent.clear()
    leader = rank.leader()
    order_window(rank.raw)
    leader.tick(NOW)
    assert rank.windows == []
    rank.state.recent.append(NS_PER_S)
    leader.tick(NOW)
    assert rank.windows == [13]


def test_what_others_leave_with_the_orders_is_no_order(tmp_path):
    rank = Rank(tmp_path / "raw")
    leader = rank.leader()
    (rank.raw / "orders").mkdir()
    contents = {
        "1.json": '{"snapshot": true}',
        "2.json": "[]",
        "3.json": '{"at"',
        "x.json": '{"at": 5}',
        "4": '{"at": 5}',
    }
    for name, content in contents.items():
        (rank.raw / "orders" / name).write_text(content)
    leader.tick(NOW)
    assert rank.windows == []


def test_windows_by_time(tmp_path):
    rank = Rank(tmp_path / "raw", settings=Settings(skip_s=5, every_s=20, warmup=1, steps=2, stack_steps=0))
    leader = rank.leader()
    found = {}
    for second in range(0, 50):
        before = rank.windows
        leader.tick(NOW + second * NS_PER_S)
        found |= dict.fromkeys(set(rank.windows) - set(before), second)
        rank.state.step += 10
    assert found == {10 + 5 * 10 + 30: 5, 10 + 25 * 10 + 30: 25, 10 + 45 * 10 + 30: 45}


def test_all_ranks_take_a_window_at_the_same_step(tmp_path, server, published):
    raw = tmp_path / "raw"
    first, second = Rank(raw, 0), Rank(raw, 1)
    leader, follower = first.leader(server), second.follower()
    exchange(leader, follower, 3)
    order_window(raw)
    exchange(leader, follower, 2, NOW + 3 * NS_PER_S)
    assert first.windows == second.windows == [40]


def test_a_rank_that_hears_too_late_says_so(tmp_path, server, published):
    raw = tmp_path / "raw"
    first, second = Rank(raw, 0), Rank(raw, 1, step=39)
    order_window(raw)
    exchange(first.leader(server), second.follower(), 3)
    assert second.windows == []
    assert second.noted("missed") == [{"at": 40, "step": 39}]


def test_who_asks_in_another_folder_is_heard_by_rank_0_once(tmp_path, server, published):
    first, second = Rank(tmp_path / "raw0", 0), Rank(tmp_path / "raw1", 1)
    leader, follower = first.leader(server), second.follower()
    order_window(second.raw, 80)
    now = exchange(leader, follower, 4)
    assert first.windows == second.windows == [80]
    first.state.step = second.state.step = 90
    exchange(leader, follower, 4, now)
    assert first.windows == second.windows == []


def test_on_one_machine_the_clock_is_known_without_measuring(tmp_path, server, published):
    first, second = Rank(tmp_path / "raw", 0), Rank(tmp_path / "raw", 1)
    follower = second.follower()
    exchange(first.leader(server), follower, 200)
    follower.close()
    [row] = second.noted("clock")
    assert (row["offset_ns"], row["rtt_ns"]) == (0, 0)


def test_between_machines_the_clock_is_read_at_once_at_windows_and_at_the_end(tmp_path, server, elsewhere):
    first, second = Rank(tmp_path / "raw", 0), Rank(tmp_path / "raw", 1)
    leader, follower = first.leader(server), second.follower()
    now = exchange(leader, follower, 4)
    assert len(second.noted("clock")) == 1
    now = exchange(leader, follower, 130, now)
    assert len(second.noted("clock")) == 3
    second.schedule.order(20)
    second.state.step = 20
    now = exchange(leader, follower, 3, now)
    second.state.step = 30
    now = exchange(leader, follower, 3, now)
    assert len(second.noted("clock")) == 5
    follower.close()
    rows = second.noted("clock")
    assert len(rows) == 6
    assert all(2 * abs(row["offset_ns"]) <= row["rtt_ns"] for row in rows)


def test_a_rank_whom_nobody_answers_gives_up_and_says_so(tmp_path, monkeypatch, server, elsewhere):
    deaf = Rank(tmp_path / "raw", 1)
    follower = deaf.follower()
    for second in range(100):
        follower.tick(NOW + second * NS_PER_S)
    [fault] = deaf.noted("fault")
    assert "UDP" in fault["message"]
    asked = []
    monkeypatch.setattr(Client, "ask", lambda self, request: asked.append(request))
    follower.tick(NOW + 200 * NS_PER_S)
    follower.close()
    assert asked == []


def test_a_rank_that_finds_no_address_stops_looking(tmp_path, monkeypatch):
    looked = []
    monkeypatch.setattr(coordinator, "_address_in_store", lambda: looked.append(1))
    alone = Rank(tmp_path / "raw", 1)
    follower = alone.follower()
    for tick in range(400):
        follower.tick(NOW + tick * NS_PER_S // 4)
    assert 25 <= len(looked) <= 35
    assert len(alone.noted("fault")) == 1


def test_a_store_that_has_gone_is_left_alone(tmp_path, monkeypatch):
    looked = []

    def gone():
        looked.append(1)
        raise RuntimeError("Broken pipe")

    monkeypatch.setattr(coordinator, "_address_in_store", gone)
    alone = Rank(tmp_path / "raw", 1)
    follower = alone.follower()
    for second in range(40):
        follower.tick(NOW + second * NS_PER_S)
    assert len(looked) == 1
    assert alone.noted("fault") == []


def test_a_group_that_ends_as_rank_0_looks_for_its_store_is_no_fault(tmp_path):
    rank = Rank(tmp_path / "raw")
    assert coordinator._open_server(rank.log) is None
    rank.log.flush()
    assert rank.noted("fault") == []


def test_a_store_that_rank_0_cannot_write_to_is_a_fault(tmp_path, monkeypatch):
    def fail(*_):
        raise RuntimeError("the store is full")

    rank = Rank(tmp_path / "raw")
    monkeypatch.setattr(coordinator.dist, "is_initialized", lambda: True)
    monkeypatch.setattr(coordinator.dist.distributed_c10d, "_get_default_store", lambda: SimpleNamespace(set=fail))
    assert coordinator._open_server(rank.log) is None
    rank.log.flush()
    assert "the store is full" in rank.noted("fault")[0]["message"]


def test_the_surest_of_some_readings_is_noted(tmp_path):
    notes = ClockNotes(Rank(tmp_path / "raw", 1).log)
    for rtt in (90, 80, 30, 40, 50, 60, 70, 75):
        notes.add([ChannelReading(NOW, rtt, rtt)])
        notes.note_where_due(NOW, at_boundary=False)
    [row] = noted(tmp_path / "raw" / "rank-00001.jsonl", "clock")
    assert row == {"at_ns": NOW, "offset_ns": 30, "rtt_ns": 30}


def test_a_month_makes_some_hundreds_of_rows():
    rows = []
    notes = ClockNotes(SimpleNamespace(note=lambda kind, **row: rows.append(row)))
    notes.add([ChannelReading(NOW, 1, 1)] * 8)
    for minute in range(30 * 24 * 60):
        notes.add([ChannelReading(NOW, 1, 1)])
        notes.note_where_due(NOW + minute * 60 * NS_PER_S, at_boundary=False)
    assert 100 < len(rows) < 700
