"""ESP305: collectives that wait on their stream for others."""

import pytest

import esprof
from benchmarks.known.jobs import job
from benchmarks.known.kineto import write
from benchmarks.known.machine import run
from esprof.analyzers import diagnose


def queued(folder, shape):
    one = job(shape, 5)
    write(folder, one.program, run(one.program), one.groups, one.recording)
    return [found for found in diagnose(esprof.load(folder)).findings if found.id == "ESP305"]


def test_all_gathers_behind_reduce_scatters_of_their_process_group_are_reported(tmp_path):
    (found,) = queued(tmp_path, "queue")
    assert "all_gather behind reduce_scatter" in found.title
    assert found.command.endswith("streams=apart")
    assert found.confidence == "low"
    assert found.saving_us > 0
    assert min(found.evidence["queued_per_step"].of(rank) for rank in found.ranks) > 0


@pytest.mark.parametrize("shape", ["fsdp", *(pytest.param(one, marks=pytest.mark.slow) for one in ("ddp", "tensor"))])
def test_streams_with_collectives_of_one_kind_have_no_queue(tmp_path, shape):
    assert queued(tmp_path, shape) == []
