"""What a recording says of what it lacks."""

import pytest

from esprof.tracer.injected.settings import Settings
from esprof.tracer.raw import Identity, ProfilerTaken, RankNotes, RecordedWindow, Step
from esprof.tracer.shortfall import nothing_recorded, shortfalls

SETTINGS = Settings(skip=5, warmup=2, steps=8)


def rank(number: int, window: tuple[int, int] | None = (7, 14), steps: int = 20, **fields) -> RankNotes:
    who = Identity(rank=number, world_size=3, host="a", pid=7, device="cpu", accelerators=0, versions={})
    windows = {"timed": RecordedWindow(phase="timed", first=window[0], last=window[1])} if window else {}
    rows = [Step(step=i + 1, start_ns=i, dur_ns=1, phase="plain") for i in range(steps)]
    return RankNotes(who, windows=windows, steps=rows, **fields)


def test_a_whole_recording_lacks_nothing(tmp_path):
    assert shortfalls(tmp_path, [rank(0), rank(1), rank(2)], SETTINGS) == []


def test_every_lack_is_named_with_its_rank(tmp_path):
    (tmp_path / "again-00000.host.1.2").touch()
    ranks = [
        rank(0, faults=["recording ended: OSError"]),
        rank(1, window=(7, 9), profiler_taken=ProfilerTaken(step=10)),
    ]
    found = shortfalls(tmp_path, ranks, SETTINGS)
    assert [(warning.code, warning.ranks) for warning in found] == [
        ("recorder-fault", (0,)),
        ("profiler-taken", (1,)),
        ("window-short", (1,)),
        ("rank-missing", (2,)),
        ("rank-again", (0,)),
    ]
    assert "3 of 8 timed steps" in found[2].message


@pytest.mark.parametrize(
    ("marks", "ranks", "reason", "remedy"),
    [
        ([], [], "no Python process", "PYTHONPATH was reset"),
        (
            ["python.1", "python.2"],
            [],
            "2 Python processes ran, but none imported torch",
            'pip install "esprof[torch]"',
        ),
        (["python.1", "torch.1"], [], "1 process imported torch, but no torch.optim optimizer stepped", "optimizer"),
        (["python.1", "torch.1"], [rank(0, None, steps=9)], "the job took 10 steps", "--skip 1 --warmup 1 --steps 7"),
        (["python.1", "torch.1"], [rank(0, None, faults=["recording ended: disk full"])], "disk full", None),
        (
            ["python.1", "torch.1"],
            [rank(0, None, profiler_taken=ProfilerTaken(step=3))],
            "torch.profiler itself",
            "off",
        ),
    ],
)
def test_where_nothing_was_recorded_it_says_what_was_seen(tmp_path, marks, ranks, reason, remedy):
    for mark in marks:
        (tmp_path / mark).touch()
    error = nothing_recorded(tmp_path, ranks, SETTINGS)
    assert reason in error.reason
    assert remedy is None or remedy in error.remedy


def test_a_folder_that_is_gone_is_named(tmp_path):
    error = nothing_recorded(tmp_path / "gone", [], SETTINGS)
    assert error.path == tmp_path / "gone"
    assert "removed" in error.reason
