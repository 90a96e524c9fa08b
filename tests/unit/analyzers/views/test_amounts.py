"""Amounts of work by step and rank."""

import numpy as np

from esprof import load
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.views.amounts import amounts
from tests.cases.kineto import comms, document, group, kernel, launch, row, step, write


def test_ranks_that_receive_more_in_all_to_alls_have_more_work(tmp_path):
    """Two steps of an all-to-all, as of experts, in which rank 1 receives three times what rank 0 does."""
    for rank in (0, 1):
        rows = []
        for n in (1, 2):
            at = 1000 * n
            sizes = {"in_elements": 200, "out_elements": (100, 300)[rank], "dtype": "Float"}
            described = {"collective": "all_to_allv", "group": "0", "seq": n} | sizes
            rows += [step(n, at, 1000), row("aten::mm", at + 10, 100), comms(at + 200, dur=60, **described)]
            rows += [launch(at + 210, n), kernel(at + 300, n, name="ncclDevKernel_SendRecv", dur=300, stream=20)]
        write(tmp_path / f"rank{rank}.json", document(*rows, rank=rank, world=2, groups=[group("0", [0, 1])]))
    found = amounts(RecordedJob(load(tmp_path)), (0, 1), (1, 2))
    assert found.keys() == {"bytes received in all-to-alls"}
    assert np.array_equal(found["bytes received in all-to-alls"], [[400, 1200], [400, 1200]])


def test_shapes_tell_the_sizes_of_tensors(tmp_path):
    for rank in (0, 1):
        rows = []
        for n in (1, 2):
            at, length = 1000 * n, (64, 128)[(n + rank) % 2]
            shaped = {"dims": [[length, 8], [8, 2]], "types": ["float", "float"]}
            rows += [step(n, at, 1000), row("aten::mm", at + 10, 100, **shaped), launch(at + 50, n), kernel(at + 60, n)]
        write(tmp_path / f"rank{rank}.json", document(*rows, rank=rank, world=2))
    found = amounts(RecordedJob(load(tmp_path)), (0, 1), (1, 2))
    assert found.keys() == {"elements of input tensors"}
    short, long = 64 * 8 + 16, 128 * 8 + 16
    assert np.array_equal(found["elements of input tensors"], [[long, short], [short, long]])
