"""Archives of traces: read as a folder of the same files, safely, and with nothing left behind."""

import io
import os
import tarfile
import tempfile
import zipfile

import pytest

from esprof import load
from esprof.core.errors import InputError
from tests.cases import kineto as case


def members(world=2):
    return {
        f"run/rank{rank}/trace.json": case._ENCODER.encode(case.document(*case.job(rank)["traceEvents"]))
        for rank in range(world)
    }


def tar(path, files, mode="w:gz"):
    with tarfile.open(path, mode) as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return path


def zipped(path, files):
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in files.items():
            archive.writestr(name, content)
    return path


@pytest.fixture(autouse=True)
def temporary(tmp_path, monkeypatch):
    """The folder for temporary files, which must be empty after each test."""
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    yield folder
    assert list(folder.iterdir()) == []


def test_a_tar_or_zip_archive_is_read_as_its_folder(tmp_path):
    for name, content in members().items():
        case.write(tmp_path / name.replace("/trace", ""), content)
    wanted = load(tmp_path / "run")
    for path in (
        tar(tmp_path / "a.tar", members(), "w:"),
        tar(tmp_path / "a.tgz", members()),
        tar(tmp_path / "a.tar.xz", members(), "w:xz"),
        zipped(tmp_path / "a.zip", members()),
    ):
        run = load(path)
        assert (run.ranks, run.path, run.sources) == ([0, 1], path, (str(path),))
        assert all(run.events(rank).arrow.equals(wanted.events(rank).arrow) for rank in run.ranks)


def test_a_folder_of_archives_is_read(tmp_path):
    (tmp_path / "runs").mkdir()
    for rank, (name, content) in enumerate(members().items()):
        zipped(tmp_path / "runs" / f"{rank}.zip", {name.replace("/trace", ""): content})
    assert load(tmp_path / "runs").ranks == [0, 1]


def test_members_that_lead_out_and_links_are_left_out(tmp_path):
    path = tmp_path / "a.tar"
    tar(path, members() | {"../../escaped.json": b"{}", "/rank7.json": members()["run/rank1/trace.json"]}, "w:")
    with tarfile.open(path, "a:") as archive:
        link = tarfile.TarInfo("run/rank2.json")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        archive.addfile(link)
    run = load(path)
    assert run.ranks == [0, 1, 7]
    assert [one.message for one in run.warnings if one.code == "members-left-out"] == [
        "a.tar: 2 members were left out: links, or names that lead out of the archive"
    ]
    assert not (tmp_path.parent / "escaped.json").exists()


def test_a_broken_member_is_named_by_the_archive(tmp_path, temporary):
    run = load(zipped(tmp_path / "a.zip", members() | {"run/rank2/trace.json": b"{"}))
    assert run.ranks == [0, 1]
    (message,) = [one.message for one in run.warnings if one.code == "trace-unreadable"]
    assert message.startswith(f"{tmp_path / 'a.zip'}/rank2_trace.json: ")
    with pytest.raises(InputError) as raised:
        load(zipped(tmp_path / "b.zip", {"x.json": b"{"}))
    assert raised.value.path == tmp_path / "b.zip" / "x.json"


@pytest.mark.parametrize("pack", [tar, zipped])
def test_a_bomb_is_refused_at_the_memory_limit(tmp_path, pack, monkeypatch):
    monkeypatch.setenv("ESPROF_MEMORY_LIMIT", "100000")
    with pytest.raises(InputError, match="when unpacked"):
        load(pack(tmp_path / "a.bin", {f"rank{rank}.json": bytes(60_000) for rank in range(2)}))


@pytest.mark.parametrize(
    ("content", "reason"),
    [({"notes.txt": b"hello"}, "is an archive without a trace"), ({}, "without a trace")],
)
def test_an_archive_without_traces_is_refused(tmp_path, content, reason):
    with pytest.raises(InputError, match=reason):
        load(tar(tmp_path / "a.tgz", content or {".hidden.json": b"{}"}))


def test_a_truncated_archive_is_refused(tmp_path):
    path = tar(tmp_path / "a.tgz", {"rank0.json": os.urandom(50_000)})
    path.write_bytes(path.read_bytes()[:20_000])
    with pytest.raises(InputError, match="is a broken archive"):
        load(path)
    path = zipped(tmp_path / "a.zip", members())
    path.write_bytes(path.read_bytes()[:500])
    with pytest.raises(InputError, match="is a broken archive"):
        load(path)
