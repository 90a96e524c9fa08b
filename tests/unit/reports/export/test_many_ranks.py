"""Exports of 1,024 ranks: one process is in memory at a time."""

import io
import json
import weakref

import numpy as np
import pytest

from esprof.analyzers.tracks.content import Exported
from esprof.analyzers.tracks.track import ArrowEnds, Slices, Track, TrackProcess
from esprof.reports.export.chrome import write_chrome
from esprof.reports.export.perfetto import write_perfetto
from tests.cases import perfetto
from tests.cases.exported import cpu_run, exported

RANKS = 1024


def process(rank):
    start, code = np.array([0, 5]), np.zeros(2, np.int64)
    slices = Slices(start, start + 4, code, [f"op of {rank}"], code, ["cpu_op"], {})
    return TrackProcess(f"rank {rank}", "", True, [Track("main", slices, ArrowEnds.none())])


def processes():
    made = []
    for rank in range(RANKS):
        one = process(rank)
        made.append(weakref.ref(one))
        yield one
        del one
        # The writer may still hold the last one.
        assert sum(ref() is not None for ref in made) <= 1


@pytest.mark.parametrize("form", ["chrome", "perfetto"])
def test_every_rank_is_written(form, monkeypatch):
    file = io.BytesIO()
    if form == "chrome":
        monkeypatch.setattr(Exported, "processes", lambda self: processes())
        write_chrome(exported(cpu_run()), file)
        rows = json.loads(file.getvalue())["traceEvents"]
        assert [row["pid"] for row in rows if row["ph"] == "X"][::2] == [f"rank {rank}" for rank in range(RANKS)]
    else:
        write_perfetto(processes(), file)
        trace = perfetto.read(file.getvalue())
        assert [one.name for one in trace.slices][::2] == [f"op of {rank}" for rank in range(RANKS)]
