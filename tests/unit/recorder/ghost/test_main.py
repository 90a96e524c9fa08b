"""How a script is started as the real rank, and the report at its end."""

import pytest

from esprof.recorder.ghost.main import main, summary
from esprof.recorder.ghost.peers import Call, ReplayedPeers
from tests.cases.ghosts import LARGE, MS, ONE_STEP, SMALL, schedule


@pytest.mark.parametrize("words", [[], ["-m"], ["--help"], ["-m", "--help"]])
def test_what_is_no_script_gets_the_usage(words, tmp_path):
    with pytest.raises(SystemExit, match=r"usage: python run\.py SCRIPT"):
        main(tmp_path / "schedule.json", words)


def test_a_script_that_does_not_exist_is_named(tmp_path):
    with pytest.raises(SystemExit, match=r"train\.py: no such script"):
        main(tmp_path / "schedule.json", [str(tmp_path / "train.py")])


def test_the_report_has_the_steps_the_waits_and_what_was_not_recorded():
    recorded = schedule(ONE_STEP)
    peers = ReplayedPeers(recorded)
    launches = [(SMALL, 0), (LARGE, 20), (SMALL, 22), (Call("barrier", (0, 1), 0), 32), (LARGE, 33)]
    for call, at in launches:
        peers.launch(call, at * MS)
    assert summary(recorded, peers).splitlines() == [
        "ghost: rank 0 met its 1 replayed peer in 1 step, after 2 collectives without them",
        "step              median        mean",
        "here            34.00 ms    34.00 ms",
        "recorded        50.00 ms    50.00 ms",
        "replayed        50.00 ms    50.00 ms",
        "no profiler     40.00 ms    40.00 ms",
        "waited in a step: 25.00 ms for rank 1",
        "not in the recording, so ended at once: barrier of 0 bytes in a group of 2, 1 time",
    ]


def test_peers_that_never_joined_in_are_reported():
    recorded = schedule(ONE_STEP)
    peers = ReplayedPeers(recorded)
    peers.launch(LARGE, 0)
    assert "no peer has joined in: in 1 collective the" in summary(recorded, peers)
