"""Runs that travel to other processes by name."""

import os
import pickle

import msgspec

import esprof
from esprof.replay.run_by_name import RunByName
from esprof.run.directory import write_meta
from tests.cases.exported import cpu_run
from tests.cases.run_directory import write_run


def stored(folder):
    run = cpu_run()
    write_run(folder, run.meta, {("events", rank): run.events(rank) for rank in run.ranks})
    return esprof.load(folder)


def arrived(run):
    return pickle.loads(pickle.dumps(RunByName(run))).run


def test_a_run_directory_is_opened_once_in_each_process(tmp_path):
    run = stored(tmp_path / "run")
    assert RunByName(run).travels
    found = arrived(run)
    assert found is arrived(run) is not run
    assert found.events(0).arrow.equals(run.events(0).arrow)
    assert found.keeps_one_rank


def test_a_run_that_has_replaced_another_is_opened_anew(tmp_path):
    run = stored(tmp_path / "run")
    before = arrived(run)
    write_meta(tmp_path / "run", msgspec.structs.replace(run.meta, exit_code=3))
    os.utime(tmp_path / "run" / "run.json", ns=(0, 0))
    assert before.meta.exit_code is None
    assert arrived(run).meta.exit_code == 3


def test_a_run_of_traces_does_not_travel(tmp_path):
    assert not RunByName(cpu_run()).travels
