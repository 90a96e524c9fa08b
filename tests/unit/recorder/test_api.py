"""Recording from a job's own code: whose folder it is, and that nothing happens where nothing records."""

import os
import subprocess
import sys

import pytest

import esprof
from esprof.core.errors import OutputError
from esprof.recorder.launcher import raw_folder
from esprof.recorder.launcher.launch import make_room
from esprof.run.raw.settings import Settings


@pytest.fixture
def in_job(monkeypatch):
    """Makes this process one of the job that is named."""
    for name in raw_folder._NAMES_OF_A_JOB:
        monkeypatch.delenv(name, raising=False)
    return lambda name: monkeypatch.setenv("TORCHELASTIC_RUN_ID", name)


def enter(run, rank: int = 0, world_size: int = 2, **settings: int):
    return raw_folder.enter(run, Settings(**settings), rank, world_size)


def test_the_first_makes_the_folder_for_this_user_alone(tmp_path, in_job):
    in_job("a")
    raw = enter(tmp_path / "new" / "run", skip=3)
    assert raw == tmp_path / "new" / "run" / "raw"
    assert Settings.read(str(raw)).skip == 3
    assert all(path.stat().st_mode & 0o077 == 0 for path in (raw.parent, raw, *raw.iterdir()))
    assert {path.name for path in raw.iterdir()} == {"job.json", "joined-00000", "orders", "settings.json"}


def test_the_other_ranks_join_with_the_settings_of_the_first(tmp_path, in_job):
    in_job("a")
    assert enter(tmp_path / "run", 0, skip=3) == enter(tmp_path / "run", 1, skip=4)
    assert Settings.read(str(tmp_path / "run" / "raw")).skip == 3
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


def test_a_job_that_is_started_again_records_into_the_next_number(tmp_path, in_job):
    for name, folder in (("a", "run"), ("b", "run-2"), ("c", "run-3")):
        in_job(name)
        for rank in (0, 1):
            assert enter(tmp_path / "run", rank) == tmp_path / folder / "raw"


def test_a_job_that_is_started_again_under_the_same_name_does_so_too(tmp_path, in_job):
    in_job("a")
    for folder in ("run", "run-2"):
        for rank in (0, 1):
            assert enter(tmp_path / "run", rank) == tmp_path / folder / "raw"


def test_a_job_of_one_process_joins_nobody(tmp_path, in_job):
    in_job("a")
    enter(tmp_path / "run", 0, world_size=1)
    assert enter(tmp_path / "run", 1, world_size=1) == tmp_path / "run-2" / "raw"


def test_a_finished_run_is_not_joined(tmp_path, in_job):
    in_job("a")
    enter(tmp_path / "run", 0)
    (tmp_path / "run" / "run.json").write_text("{}")
    assert enter(tmp_path / "run", 1) == tmp_path / "run-2" / "raw"


def test_a_folder_that_others_may_write_to_is_not_joined(tmp_path, in_job):
    in_job("a")
    enter(tmp_path / "run", 0).chmod(0o777)
    assert enter(tmp_path / "run", 1) == tmp_path / "run-2" / "raw"


def test_a_folder_with_a_number_that_is_no_run_stays_as_it_is(tmp_path, in_job):
    in_job("a")
    enter(tmp_path / "run")
    (tmp_path / "run-2").mkdir()
    in_job("b")
    with pytest.raises(OutputError, match="run-2: already exists"):
        enter(tmp_path / "run")
    assert list((tmp_path / "run-2").iterdir()) == []


@pytest.mark.parametrize("planted", ["file", "folder", "link"])
def test_what_is_there_stays_as_it_is(tmp_path, planted):
    run, thesis = tmp_path / "run", tmp_path / "thesis"
    thesis.mkdir()
    (thesis / "chapter.tex").write_text("years of work")
    {
        "file": lambda: run.write_text("mine"),
        "folder": lambda: thesis.rename(run),
        "link": lambda: run.symlink_to(thesis),
    }[planted]()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OutputError):
        enter(run)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_path_to_which_no_trace_can_be_saved_is_refused(tmp_path):
    run = tmp_path / os.fsdecode(b"r\xffn")
    for make in (enter, lambda run: raw_folder.open_to_all(run, Settings()), lambda run: make_room(run, force=False)):
        with pytest.raises(OutputError, match="is not UTF-8"):
            make(run)
    assert list(tmp_path.iterdir()) == []


def test_an_error_names_a_path_that_cannot_be_created(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written"):
        enter(tmp_path / "file" / "run")


@pytest.mark.parametrize(("settings", "error"), [({"skip": 0}, ValueError), ({"skips": 1}, TypeError)])
def test_settings_that_make_no_sense_are_refused_before_anything_is_made(tmp_path, settings, error):
    pytest.importorskip("torch")
    with pytest.raises(error), esprof.record(tmp_path / "run", **settings):
        pass
    assert not (tmp_path / "run").exists()


def test_where_nothing_records_a_stage_is_nothing():
    @esprof.stage("double")
    def double(number: int) -> int:
        return 2 * number

    assert double(4) == 8
    with pytest.raises(ZeroDivisionError), esprof.stage("divide"):
        _ = 1 / 0
    esprof.step()


def test_where_nothing_records_torch_is_not_imported():
    code = "import sys, esprof\nwith esprof.stage('a'): esprof.step()\nprint('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=os.environ | {"RANK": "0"})
    assert (done.stdout, done.stderr) == ("False\n", "")
