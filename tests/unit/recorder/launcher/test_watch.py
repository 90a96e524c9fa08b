"""What the launcher says of a running job, from files by hand and a clock that the test sets."""

import fcntl
import json

import msgspec
import pytest

from esprof.recorder.launcher import watch
from esprof.recorder.launcher.watch import JobWatch
from esprof.run.raw.settings import Settings
from tests.cases.flight import BEGAN_NS, SEGV_TEXT, SIGTERM_TEXT, S, call, snapshot

WAITING = snapshot(0, [call(1), call(2, over=False)], location=("train.py", 20, "step"))
ELSEWHERE = snapshot(1, [call(1)], location=("data.py", 88, "read"))
HUNG = [
    "step 9 has been hanging for 6 s: rank 1 did not enter all_reduce 2, which rank 0 waits in",
    "  rank 1 is at data.py(88): read",
]


class Job:
    """Two ranks that live, and what the launcher says of them."""

    def __init__(self, raw, monkeypatch):
        Settings().write(str(raw))
        self.raw = raw
        self.said = []
        self.now_s = 100.0
        monkeypatch.setattr(watch.time, "monotonic", lambda: self.now_s)
        self.watch = JobWatch(raw, self.said.append)
        self.locks = [self.start(rank) for rank in (0, 1)]
        self.taken = 0

    def start(self, rank):
        notes = (self.raw / f"rank-{rank:05d}.jsonl").open("w")
        fcntl.flock(notes, fcntl.LOCK_EX)
        notes.write('{"kind":"rank"}\n')
        notes.flush()
        return notes

    def end(self, rank, last=""):
        self.locks[rank].write(last)
        self.locks[rank].close()

    def take(self, *snapshots):
        for one in snapshots:
            (self.raw / f"flight-{one.rank:05d}.{self.taken}.json").write_bytes(msgspec.json.encode(one))
            self.taken += 1

    def look(self, times=1):
        for _ in range(times):
            self.watch.look()
            self.now_s += 1
        return self.said

    @property
    def orders(self):
        return [json.loads(file.read_text()) for file in (self.raw / "orders").glob("*")]


@pytest.fixture
def job(tmp_path, monkeypatch):
    return Job(tmp_path, monkeypatch)


def test_nothing_is_said_of_a_job_that_runs(job):
    assert job.look(5) == []
    assert list(job.raw.glob("orders/*")) == []


def test_a_hang_is_reported_once_and_at_once_if_all_ranks_are_seen(job):
    job.take(WAITING, ELSEWHERE)
    assert job.look(5) == HUNG


def test_ranks_that_are_not_seen_yet_are_asked(job):
    job.take(WAITING)
    assert job.look() == []
    assert job.orders == [{"snapshot": True}]
    job.take(msgspec.structs.replace(ELSEWHERE, reason="asked"))
    assert job.look(3) == HUNG
    assert len(job.orders) == 1


def test_a_rank_that_gives_no_sign_is_named_in_the_end(job):
    job.take(WAITING)
    said = job.look(4)
    assert said[0].endswith("rank 0 waits in all_reduce 2, and nothing is seen of rank 1")
    assert said[1].startswith("  rank 1 does not respond")


def test_a_wait_that_has_just_started_is_examined_again(job):
    began = snapshot(0, [call(1), call(2, over=False, at_ns=WAITING.at_ns - S)])
    job.take(began, ELSEWHERE)
    assert job.look(4) == []
    later = WAITING.at_ns + 4 * S
    job.take(*(msgspec.structs.replace(one, at_ns=later, reason="asked") for one in (began, ELSEWHERE)))
    assert job.look(3)[0].startswith("step 9 has been hanging for 5 s: rank 1 did not enter")


def test_a_long_step_in_which_nobody_waits_is_not_reported(job):
    job.take(snapshot(0, [call(1)]), snapshot(1, [call(1)]))
    assert job.look(6) == []
    assert len(job.orders) == 1


def test_snapshots_of_slow_steps_are_not_for_the_launcher(job):
    job.take(*(msgspec.structs.replace(one, reason="slow") for one in (WAITING, ELSEWHERE)))
    assert job.look(4) == []


def test_the_end_of_a_hang_and_the_next_hang_are_reported(job):
    job.take(WAITING, ELSEWHERE)
    assert job.look(2) == HUNG
    (job.raw / "rank-00000.roll.0.jsonl").write_text('{"kind":"steps"}\n')
    assert job.look(2) == [*HUNG, "the hang has ended: the ranks that waited continue"]
    at_ns = BEGAN_NS + 60 * S
    calls = [call(1), call(2), call(3, over=False, at_ns=at_ns - 9 * S)]
    job.take(snapshot(0, calls, at_ns=at_ns, step=20), snapshot(1, [call(1), call(2)], at_ns=at_ns, step=20))
    assert (
        job.look(2)[3] == "step 20 has been hanging for 9 s: rank 1 did not enter all_reduce 3, which rank 0 waits in"
    )


def test_a_rank_that_a_fault_ended_is_reported_at_once(job):
    (job.raw / "fatal-00001.txt").write_text(SEGV_TEXT)
    job.end(1)
    assert job.look(3) == ["rank 1 has died: Segmentation fault, at /job/train.py(88): step"]
    assert job.orders == [{"snapshot": True}], "the others are to show where they are"


def test_a_rank_that_vanished_is_reported_if_others_go_on(job):
    job.end(1)
    said = job.look(4)
    assert said == ["rank 1 has died: it was killed, perhaps because memory ran out, or called os._exit()"]


def test_who_waits_for_a_rank_that_died_is_said_so(job):
    job.end(1)
    job.look(3)
    job.take(WAITING)
    assert job.look(4)[-1] == "  rank 1 has died"


@pytest.mark.parametrize(
    "last",
    [
        '{"kind":"end","step":9}\n',
        '{"kind":"stopped","message":"recording failed: x"}\n' + 200 * f'{{"kind":"clock","at_ns":{S}}}\n',
        f'{{"kind":"stopped","message":"{5_000 * "x"}"}}\n',
        '{ "step": 9, "kind": "end" }\n{"kind": "cl',
    ],
    ids=["end", "stopped long ago", "long message", "written otherwise"],
)
def test_a_rank_that_ended_in_peace_did_not_die(job, last):
    job.end(1, last)
    assert job.look(4) == []
    job.take(WAITING)
    assert job.look(4)[-1] == "  rank 1 has ended"


def test_ranks_that_the_launcher_ended_are_not_reported(job):
    for rank in (0, 1):
        (job.raw / f"fatal-{rank:05d}.txt").write_text(SIGTERM_TEXT)
        job.end(rank)
    assert job.look(4) == []


def test_a_job_that_is_killed_as_a_whole_is_not_reported(job):
    job.end(0)
    job.end(1)
    assert job.look(4) == []


def test_what_is_said_on_a_terminal_is_harmless(capsys):
    watch.say_on_stderr("at \x1b[31mtrain.py")
    assert capsys.readouterr().err == "esprof: at \\x1b[31mtrain.py\n"
