"""What is compared when other processes leave the CPUs of a job."""

import pytest

from benchmarks.contention import Left, Recorded


def test_the_wait_that_is_left_alone_is_not_held_against_the_prediction():
    left = Left("gpt", 2, before=(Recorded(100, 35), Recorded(110, 45)), alone=(Recorded(70, 5), Recorded(80, 5)))
    carried = left.carried_out
    assert (carried.job, carried.term) == ("cpu", "runqueue")
    assert (carried.before, carried.predicted, carried.observed) == (105, 70, 75)
    assert carried.share_off == pytest.approx(5 / 105)
    assert left.noise_pct == pytest.approx(100 * (80 / 70 - 1))
