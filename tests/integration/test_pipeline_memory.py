"""The peak of a pipeline under another schedule, against that of a job that runs it."""

import pytest

from esprof.replay.replayed import Replayed, answer
from tests.cases.record import JOBS, ranks, record

pytestmark = pytest.mark.integration

_ANY = 1e9
"""Per cent by which replay may be off: how far it is depends on what else the machine does."""


def recorded(path, schedule):
    job = ranks(2, JOBS / "pipelined.py", 8, schedule, 4)
    ended = record(path, job, skip=2, warmup=1, steps=3, stack_steps=0, shapes=True, memory=True)
    assert ended.code == 0, ended.stderr
    return Replayed.of(ended.run, max_error_pct=_ANY)


def test_predicted_peaks_are_those_of_the_other_schedule(tmp_path):
    runs = {name: recorded(tmp_path / name, name) for name in ("gpipe", "1f1b")}
    for before, after in (("gpipe", "1f1b"), ("1f1b", "gpipe")):
        (predicted,) = answer(runs[before], [f"pipeline={after}"]).what_if
        measured = max(one.peak for one in answer(runs[after]).memory)
        assert predicted.peak.peak == pytest.approx(measured, rel=0.05)
