"""The folder of a reproducer: what is in it, and that nothing else is overwritten."""

import ast
import json
from pathlib import Path

import pytest

import esprof.recorder.ghost
from esprof.analyzers.ghost.peers import ghost_schedule
from esprof.core.errors import OutputError
from esprof.recorder.ghost.peers import PeerSchedule
from esprof.replay.replayed import Replayed
from esprof.reports.export.ghost import write_ghost
from tests.cases.exported import cpu_run

CODE = Path(esprof.recorder.ghost.__file__).parent


@pytest.fixture(scope="module")
def schedule():
    return ghost_schedule(Replayed.of(cpu_run()), 0)


def test_the_folder_has_all_that_runs_and_no_name_of_the_job(schedule, tmp_path):
    folder = tmp_path / "deep" / "ghost"
    write_ghost(schedule, folder, force=False)
    copied = {file.name: file.read_bytes() for file in (folder / "esprof_ghost").iterdir()}
    assert copied == {file.name: file.read_bytes() for file in CODE.glob("*.py")}
    assert {file.name for file in folder.iterdir()} == {"README.md", "esprof_ghost", "run.py", "schedule.json"}
    assert PeerSchedule.read(folder / "schedule.json").world_size == 2
    for name in ("README.md", "run.py", "schedule.json"):
        assert "secret" not in (folder / name).read_text()
    assert "as rank 0" in (folder / "README.md").read_text()


def test_the_copied_code_imports_pytorch_the_standard_library_and_itself():
    for path in CODE.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            names = [one.name for one in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom) and not node.level:
                names = [node.module]
            assert not {name.split(".")[0] for name in names} & {"esprof", "numpy", "msgspec", "click"}, path


def test_a_reproducer_is_replaced_by_force_and_nothing_else_is(schedule, tmp_path):
    folder = tmp_path / "ghost"
    write_ghost(schedule, folder, force=False)
    with pytest.raises(OutputError, match="already exists"):
        write_ghost(schedule, folder, force=False)
    (folder / "left over").touch()
    write_ghost(schedule, folder, force=True)
    assert not (folder / "left over").exists()
    other = tmp_path / "my data"
    other.mkdir()
    with pytest.raises(OutputError, match="is not a reproducer"):
        write_ghost(schedule, other, force=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ghost", "my data"]


def test_a_schedule_of_another_version_is_refused(tmp_path):
    (tmp_path / "schedule.json").write_text(json.dumps({"schema": "esprof.ghost/2"}))
    with pytest.raises(SystemExit, match="export it again"):
        PeerSchedule.read(tmp_path / "schedule.json")
