"""A job does not notice that it is recorded, whatever it does to its own process."""

import pytest

from tests.cases.marks import soak
from tests.cases.record import job, record, run

pytestmark = pytest.mark.integration


@pytest.mark.parametrize(
    "what",
    ["fork_and_exit", "threads", "close_files", soak("asks_first"), soak("two_trainings"), "signalled", soak("deaf")],
)
def test_the_job_is_what_it_is_without_us(what, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    victim = tmp_path / "victim"
    victim.mkdir()
    # Without a launcher around it, it is this test that would be signalled.
    plain = run(job("odd_guests.py", what), VICTIM=str(victim)) if what != "signalled" else None
    ended = record(tmp_path / "run", job("odd_guests.py", what), {"VICTIM": str(tmp_path / "run")}, stack_steps=0)
    assert ended.code == 0
    if plain is not None:
        assert plain.code == 0
        assert ended.stdout == plain.stdout
    else:
        assert ended.stdout.splitlines()[-1] == "['heard']"


def test_a_library_that_asks_for_torch_first_does_not_keep_the_job_from_being_recorded(tmp_path):
    ended = record(tmp_path / "run", job("odd_guests.py", "asks_first"), stack_steps=0)
    assert ended.run.ranks == [0]


def test_the_second_training_of_a_job_is_recorded_too(tmp_path):
    ended = record(tmp_path / "run", job("odd_guests.py", "two_trainings"), every=40, stack_steps=0)
    assert len(ended.run.rank(0).windows) >= 4


def test_a_window_whose_thread_ends_is_given_up_and_the_next_ones_taken(tmp_path):
    ended = record(tmp_path / "run", job("odd_guests.py", "threads"), skip=8, steps=4, every=10, stack_steps=0)
    assert "windows-lost" in {warning.code for warning in ended.run.warnings}
    assert len(ended.run.rank(0).windows) >= 1
