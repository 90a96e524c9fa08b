"""What a recording says of what it lacks."""

import msgspec
import pytest

from esprof.run.collect.notes import JobsTrace, Lost, Missed, ProfilerTaken, RankIdentity, RankNotes, RecordedWindow
from esprof.run.collect.rolled_rows import NotedStep, RankRows
from esprof.run.collect.shortfall import is_empty, job_warnings, lost_windows, nothing_recorded, rank_warnings
from esprof.run.raw.reasons import LossReason
from esprof.run.raw.settings import Settings
from esprof.run.run import RunWarning
from tests.cases.raw import roll, step

SETTINGS = Settings(skip=5, warmup=2, steps=8)


def rank(number: int, window: tuple[int, int] | None = (7, 14), **fields) -> RankNotes:
    who = RankIdentity(rank=number, world_size=3, host="a", pid=7, device="cpu", accelerators=0, versions={})
    windows = [RecordedWindow(phase="timed", first=window[0], last=window[1])] if window else []
    return RankNotes(who, **({"windows": windows, "ended": True} | fields))


def rows(last: int = 20, first: int = 1, timed: range = range(7, 15)) -> RankRows:
    phases = {number: "timed" if number in timed else "plain" for number in range(first, last + 1)}
    return RankRows(steps=[NotedStep(step, step, 1, phase) for step, phase in phases.items()])


def said(
    notes: RankNotes, taken: RankRows, settings: Settings = SETTINGS, *, alive: bool = False
) -> list[tuple[str, str]]:
    lost = lost_windows(notes, taken, alive=alive)
    found = rank_warnings(notes, taken, lost, settings, alive=alive)
    assert all(warning.ranks == (notes.rank,) for warning in found)
    return [(warning.code, warning.message.removeprefix(f"rank {notes.rank}: ")) for warning in found]


def test_a_whole_recording_lacks_nothing(tmp_path):
    assert said(rank(0), rows()) == []
    assert job_warnings(tmp_path, [rank(0), rank(1), rank(2)], []) == []


def test_ranks_that_are_missing_strange_or_twice_there_are_named(tmp_path):
    (tmp_path / "again-00000.host.1.2").touch()
    found = job_warnings(tmp_path, [rank(0), rank(2)], [tmp_path / "rank-00001.jsonl"])
    assert [(warning.code, warning.ranks) for warning in found] == [
        ("rank-unreadable", ()),
        ("rank-missing", (1,)),
        ("rank-again", (0,)),
    ]


def test_what_the_torch_of_the_job_cannot_tell_is_said_once(tmp_path):
    who = [msgspec.structs.replace(rank(n).identity, versions={"torch": "2.6"}, lacks=["no this"]) for n in range(3)]
    found = job_warnings(tmp_path, [RankNotes(one, ended=True) for one in who], [])
    assert found == [RunWarning("torch-lacks", "torch 2.6: no this")]


def test_every_lack_of_a_rank_is_named():
    notes = rank(
        1,
        window=(7, 9),
        faults=["watch for hangs failed: OSError"],
        profiler_taken=[ProfilerTaken(step=10)],
        missed=[Missed(at=17, step=19)],
        unreadable=["rank-00001.jsonl: 1 line is corrupt"],
    )
    assert said(notes, rows(first=3)) == [
        ("recorder-fault", "watch for hangs failed: OSError"),
        ("profiler-taken", "the job started its own profiler in step 10"),
        ("rank-unreadable", "rank-00001.jsonl: 1 line is corrupt"),
        ("steps-dropped", "2 steps were dropped to limit the recording's size; the first retained step is 3"),
        ("order-missed", "received the request for a window at step 17 too late, in step 19"),
        ("window-short", "the timed window at step 7 has 3 of 8 steps"),
    ]


def test_a_flight_recorder_lacks_no_steps_but_those_it_was_asked_to_keep():
    taken = rows(last=30, first=11)
    assert said(rank(0, window=None), taken, Settings(windows=False, flight_steps=20)) == []
    ((code, message),) = said(rank(0, window=None), taken, Settings(windows=False, flight_steps=21))
    assert (code, "10 steps were dropped" in message) == ("steps-dropped", True)


def test_a_rank_without_a_timed_window_is_not_missing():
    assert said(rank(1, window=None), rows(last=5)) == [
        ("no-timed-window", "has no timed window; its last complete step is 5")
    ]


def test_windows_that_were_lost_for_the_same_reason_are_told_together():
    lost = [Lost(first=10 * i, phase="timed", reason=LossReason.DISK_LIMIT) for i in range(1, 8)]
    lost.append(Lost(first=7, phase="stack", reason=LossReason.MEMORY_LIMIT))
    found = said(rank(0, lost=lost), rows())
    assert found == [
        (
            "windows-lost",
            "7 windows at steps 10, 20, 30, 40, 50, 60, 70 lost: the traces exceeded the disk limit",
        ),
        ("windows-lost", "1 window at step 7 lost: the rest would exceed the memory limit"),
    ]


def test_a_killed_rank_lost_the_window_that_was_open():
    killed = rank(0, ended=False)
    taken = rows(last=19, timed=range(7, 18))  # The window from 7 to 14 was kept, then another one began.
    assert [(lost.first, lost.phase) for lost in lost_windows(killed, taken, alive=False)] == [(15, "timed")]
    assert lost_windows(killed, taken, alive=True) == lost_windows(rank(0), taken, alive=False) == []
    assert said(killed, taken)[0] == (
        "rank-killed",
        "was killed or called os._exit(); its last recorded step is 19",
    )


def test_a_rank_whose_recorder_ended_itself_is_not_said_to_be_killed():
    notes = rank(0, ended=False, stopped=True, faults=["recording failed: disk full"])
    assert said(notes, rows()) == [("recorder-fault", "recording failed: disk full")]


@pytest.mark.parametrize(
    ("marks", "ranks", "reason", "remedy"),
    [
        ([], [], "no Python process", "do not reset PYTHONPATH"),
        (
            ["python.1", "python.2"],
            [],
            "2 Python processes ran, but none imported torch",
            'pip install "esprof[torch]"',
        ),
        (["python.1", "torch.1"], [], "1 process imported torch, but no step was detected", "esprof.step()"),
        (
            ["python.1", "torch.1", "rank-00003.jsonl"],
            [],
            "rank 3 trained, but could not write to this folder",
            "disk is probably full",
        ),
        (["python.1", "torch.1"], [rank(0, None)], "the job ended after 10 steps", "--skip 1 --warmup 1 --steps 7"),
        (
            ["python.1", "torch.1"],
            [rank(0, None, stopped=True, faults=["recording failed: disk full"])],
            "disk full",
            None,
        ),
        (
            ["python.1", "torch.1"],
            [rank(0, None, lost=[Lost(first=7, phase="timed", reason=LossReason.MEMORY_LIMIT)])],
            "all windows were lost (the rest would exceed the memory limit)",
            None,
        ),
    ],
)
def test_where_nothing_was_recorded_it_says_what_was_seen(tmp_path, marks, ranks, reason, remedy):
    for mark in marks:
        (tmp_path / mark).touch()
    roll(tmp_path, "rank-00000.roll.0", "steps", step(9))
    error = nothing_recorded(tmp_path, ranks, SETTINGS)
    assert reason in error.reason
    assert remedy is None or remedy in error.remedy


@pytest.mark.parametrize(
    "fields",
    [
        {"lost": [Lost(first=7, phase="timed", reason=LossReason.JOBS_PROFILER)]},
        {"profiler_taken": [ProfilerTaken(step=3)]},
        {"jobs_traces": {"a.json": JobsTrace("a.json", 1, 2)}},
    ],
)
def test_a_job_with_a_profiler_of_its_own_has_a_run_without_a_window(tmp_path, fields):
    assert is_empty(tmp_path, [rank(0, None)], SETTINGS)
    assert not is_empty(tmp_path, [rank(0, None, **fields)], SETTINGS)


def test_a_folder_that_is_gone_is_named(tmp_path):
    error = nothing_recorded(tmp_path / "gone", [], SETTINGS)
    assert error.path == tmp_path / "gone"
    assert "removed" in error.reason
