"""Graphs of ranks that are kept in files."""

from dataclasses import fields
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest

from esprof.replay.building.build import build
from esprof.replay.skeleton import kept_graphs
from esprof.replay.skeleton.kept_graphs import GraphFile, KeptGraphs
from tests.cases.exported import cpu_run
from tests.cases.graph import nccl_ranks, run_of


@pytest.mark.parametrize("run", [cpu_run(), run_of(nccl_ranks())], ids=["cpus", "gpus"])
def test_a_graph_is_read_as_it_was_written(run, tmp_path):
    dfg, file = build(run), GraphFile(tmp_path / "3.arrow")
    file.write(dfg)
    found = file.read()
    for field in fields(dfg):
        if isinstance(values := getattr(dfg, field.name), np.ndarray):
            assert (getattr(found, field.name).dtype, getattr(found, field.name).tolist()) == (
                values.dtype,
                values.tolist(),
            )
            assert getattr(found, field.name).flags.writeable
    assert (found.t0_ns, found.names, found.lanes) == (dfg.t0_ns, dfg.names, dfg.lanes)
    assert (found.marks.steps, found.marks.ranks) == (dfg.marks.steps, dfg.marks.ranks)
    assert (found.marks.first.tolist(), found.marks.last.tolist()) == (
        dfg.marks.first.tolist(),
        dfg.marks.last.tolist(),
    )
    assert [path.name for path in tmp_path.iterdir()] == ["3.arrow"]


def test_nothing_is_kept_where_the_folder_is_not(tmp_path):
    file = GraphFile(tmp_path / "elsewhere" / "0.arrow")
    file.write(build(cpu_run()))
    assert file.read() is None
    assert not any(tmp_path.iterdir())


def test_a_damaged_file_counts_as_none(tmp_path):
    file = GraphFile(tmp_path / "0.arrow")
    file.write(build(cpu_run()))
    file.path.write_bytes(file.path.read_bytes()[:-50])
    assert file.read() is None


def test_the_folder_goes_with_its_owner():
    kept = KeptGraphs(events=10)
    folder = kept.folder
    kept.of(2).write(build(cpu_run()))
    assert folder.is_dir()
    del kept
    assert not folder.exists()


def keep_and_tell(told):
    keep_and_tell.kept = KeptGraphs(events=10)
    told.put(str(keep_and_tell.kept.folder))


def test_the_folder_goes_with_a_process_of_a_pool():
    context = get_context("fork")
    told = context.SimpleQueue()
    process = context.Process(target=keep_and_tell, args=(told,))
    process.start()
    folder = Path(told.get())
    process.join()
    assert folder.name.startswith("esprof-graphs-")
    assert not folder.exists()


def test_nothing_is_kept_without_a_folder_for_temporary_files(monkeypatch, tmp_path):
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "none"))
    assert KeptGraphs(events=10).of(2) is None


def test_nothing_is_kept_on_a_disk_with_too_little_room(monkeypatch):
    monkeypatch.setattr(kept_graphs, "BYTES_AN_EVENT", 2**60)
    assert KeptGraphs(events=10).of(2) is None
