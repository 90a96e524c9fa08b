"""Files are whole or absent, whatever happens while they are written."""

import os
import stat
import threading

import pytest

from esprof.core.errors import OutputError
from esprof.core.output import atomic_file, atomic_folder, claim, write_bytes


def test_a_file_appears_whole_and_alone(tmp_path):
    path = tmp_path / "deep" / "er" / "report.html"
    with atomic_file(path) as file:
        file.write(b"half")
        file.flush()
        assert not path.exists()
        file.write(b" and half")
    assert path.read_bytes() == b"half and half"
    assert os.listdir(path.parent) == ["report.html"]


@pytest.mark.parametrize("error", [ValueError("no"), KeyboardInterrupt(), SystemExit(3)])
def test_a_failure_leaves_what_was_there(tmp_path, error):
    path = tmp_path / "run.json"
    path.write_text("old")

    def fail_half_way():
        with atomic_file(path) as file:
            file.write(b"new")
            raise error

    with pytest.raises(type(error)):
        fail_half_way()
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["run.json"]


def test_the_user_may_let_others_read_it(tmp_path):
    before = os.umask(0o027)
    try:
        write_bytes(tmp_path / "report.html", b"x")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "report.html").stat().st_mode) == 0o640


def test_a_name_as_long_as_the_system_allows(tmp_path):
    path = tmp_path / ("x" * 255)
    write_bytes(path, b"x")
    assert path.read_bytes() == b"x"


@pytest.mark.parametrize("name", ["folder", "file/inside", "x" * 300])
def test_what_cannot_be_written_is_told(tmp_path, name):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(OutputError, match="cannot be written") as caught:
        write_bytes(tmp_path / name, b"x")
    assert caught.value.path == tmp_path / name
    assert caught.value.remedy
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    read = []
    reader = threading.Thread(target=lambda: read.append(pipe.read_bytes()))
    reader.start()
    claim(pipe, force=False)
    write_bytes(pipe, b"through")
    reader.join(10)
    assert read == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_claim(tmp_path):
    claim(tmp_path / "new", force=False)
    (tmp_path / "old").touch()
    (tmp_path / "dangling").symlink_to(tmp_path / "nowhere")
    for name in ("old", "dangling"):
        with pytest.raises(OutputError, match="already exists") as caught:
            claim(tmp_path / name, force=False)
        assert "--force" in caught.value.remedy
        claim(tmp_path / name, force=True)


def test_a_folder_appears_whole_and_a_failure_leaves_what_was_there(tmp_path):
    path = tmp_path / "deep" / "folder"
    with atomic_folder(path) as made:
        (made / "old").touch()
        assert not path.exists()

    def fail_half_way():
        with atomic_folder(path) as made:
            (made / "new").touch()
            raise ValueError

    with pytest.raises(ValueError):
        fail_half_way()
    assert os.listdir(path.parent) == ["folder"]
    assert os.listdir(path) == ["old"]
    with atomic_folder(path) as made:
        (made / "new").touch()
    assert os.listdir(path) == ["new"]
