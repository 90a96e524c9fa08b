"""Ranks that do not make the same calls of their trainer: all end, soon, and it is said which rank it was."""

import socket
import subprocess
import sys
import time

import pytest

from tests.cases.record import JOBS, environment

pytestmark = pytest.mark.integration

LONGEST_S = 60
"""Far below what a collective waits by itself, half an hour; on an idle machine all end in fifteen, start included."""


def ranks_of(job, *args, world=2):
    """The ranks, started by hand: a launcher would end the other ones when one has failed."""
    port = str(_free_port())
    variables = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port, "WORLD_SIZE": str(world), "PYTHONPATH": "."}
    command = [sys.executable, str(JOBS / job), *map(str, args)]
    return [
        subprocess.Popen(
            command,
            env=environment(**variables, RANK=str(rank)),
            stderr=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world)
    ]


@pytest.mark.parametrize(
    ("what", "says"),
    [
        (
            "saves",
            ["rank 1 called save() where rank 0 called step 2", "rank 0 called step 2 where rank 1 called save()"],
        ),
        (
            "assigns",
            ["rank 1 called assign() where rank 0 called step 2", "rank 0 called step 2 where rank 1 called assign()"],
        ),
        ("fails", ["rank 1 failed in step 2: RuntimeError: out of luck"]),
        ("waits", ["rank 1 is in barrier of torch.distributed after step 1, and rank 0 is in step 2"]),
        ("ends", ["rank 1 has ended after step 1, and rank 0 is in step 2"]),
        ("raises", ["rank 1 has ended after step 1 by ValueError: no such file, and rank 0 is in step 2"]),
        ("stops", ["rank 1 has ended after step 1, and rank 0 is in step 2"]),
        ("flushes", ["rank 1 called flush() where rank 0 called step 2"]),
    ],
)
def test_a_rank_with_a_different_call_is_named(what, says, tmp_path):
    ranks = ranks_of("unlike_calls.py", what, tmp_path / "c")
    began = time.monotonic()
    outputs = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert time.monotonic() - began < LONGEST_S
    assert any(one in outputs[0] for one in says), outputs
    assert ranks[0].returncode == 1
    if what not in ("ends", "stops", "flushes"):
        assert ranks[1].returncode == 1


@pytest.mark.parametrize("what", ["stops", "raises"])
def test_ranks_whose_store_is_gone_end_as_well(what, tmp_path):
    ranks = ranks_of("unlike_calls.py", what, tmp_path, 0)
    outputs = [rank.communicate(timeout=200)[1] for rank in ranks]
    assert ranks[1].returncode == 1
    says = ["rank 0, which holds the job's store, is gone; rank 1 is in step 2", "rank 0 has ended after step 1"]
    assert any(one in outputs[1] for one in says), outputs


def test_ranks_stop_together_when_one_of_them_decides(tmp_path):
    ranks = ranks_of("unlike_calls.py", "agrees", tmp_path)
    outputs = [rank.communicate(timeout=200)[0] for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0]
    assert outputs == [f"rank {rank} stops after step 2\n" for rank in range(2)]


def test_ranks_with_slow_calls_are_waited_for():
    ranks = ranks_of("slow_calls.py", world=3)
    outputs = [rank.communicate(timeout=200) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], outputs
    assert all("well" in out and "esprof: error" not in err for out, err in outputs)


def test_a_rank_that_caught_the_error_may_take_long_to_clean_up(tmp_path):
    ranks = ranks_of("unlike_calls.py", "cleans", tmp_path)
    outputs = [rank.communicate(timeout=200) for rank in ranks]
    assert "rank 1 has ended after step 1, and rank 0 is in step 2" in outputs[0][1]
    assert (tmp_path / "cleaned").read_text() == "rank 0"


def _free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return one.getsockname()[1]
