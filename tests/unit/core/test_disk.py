"""Why a file system refused to write, in words."""

import errno
import os
import resource

import pytest

from esprof.core.disk import refusal
from esprof.run.raw.new_files import NewFile


def of(number, path):
    return refusal(OSError(number, os.strerror(number)), str(path))


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_is_named_by_where_it_is_mounted(number):
    assert of(number, "/proc/self/deep/er") == f"{os.strerror(number)} (on the disk at /proc)"


def test_a_link_leads_to_the_disk_that_is_written_to(tmp_path):
    (tmp_path / "link").symlink_to("/proc/self")
    assert of(errno.ENOSPC, tmp_path / "link" / "run").endswith("(on the disk at /proc)")


def test_another_reason_is_told_as_it_is(tmp_path):
    assert of(errno.EACCES, tmp_path) == "Permission denied"


def test_a_file_that_cannot_take_all_takes_nothing_and_is_named(tmp_path):
    path = tmp_path / "notes.jsonl"
    file = NewFile(str(path))
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, before[1]))
    try:
        with pytest.raises(OSError, match="space left") as caught:
            file.append(b"a whole row")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert (caught.value.filename, path.stat().st_size) == (str(path), 0)
