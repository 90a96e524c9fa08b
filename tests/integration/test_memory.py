"""Predicted peaks of memory against those of jobs that were really changed."""

import pytest

from esprof.replay.replayed import answer
from tests.cases.record import job, record

pytestmark = pytest.mark.integration


def recorded(path, batch, how):
    ended = record(path, job("blocks.py", batch, how), memory=True, skip=2, warmup=1, steps=3, stack_steps=0)
    assert ended.code == 0, ended.stderr
    return ended.run


@pytest.mark.promise
def test_predicted_peaks_are_those_of_the_changed_job(tmp_path):
    run = recorded(tmp_path / "run", 256, "none")
    asked = {"batch=2x": (512, "none"), "recompute=full": (256, "full")}
    predicted = {one.spec: one for one in answer(run, list(asked)).what_if}
    for spec, changed in asked.items():
        (measured,) = answer(recorded(tmp_path / spec, *changed)).memory
        assert predicted[spec].peak.peak == pytest.approx(measured.peak, rel=0.02)
