"""Compiled functions and their code on disk: what is there to lose, time, and what is not, the answer."""

import importlib
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from esprof.core.compiled import cache_folder

CALLEE = """
from enum import IntEnum
from esprof.core.compiled import compiled

class Weight(IntEnum):
    HEAVY = 3

@compiled
def weighted(value):
    return value * Weight.HEAVY
"""
KERNEL = """
from callee import weighted
from esprof.core.compiled import compiled

OFFSET = 1

@compiled
def total(values):
    result = 0
    for value in values:
        result += weighted(value) + OFFSET
    return result
"""
ASK = """
import numpy as np
from kernel import total
print(total(np.arange(5)), sum(total.stats.cache_hits.values()))
"""


class Kernel:
    """A module with a compiled function, asked by this process or by new ones, which all share one home."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.source = folder / "source"
        self.home = folder / "home"
        self.code = self.home / ".cache" / "esprof" / "kernels"
        self._patch = monkeypatch
        self.home.mkdir()
        self.source.mkdir()
        self.write("callee", CALLEE)
        self.write("kernel", KERNEL)
        for name in ("NUMBA_CACHE_DIR", "XDG_CACHE_HOME"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("HOME", str(self.home))
        monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
        monkeypatch.setattr(sys, "dont_write_bytecode", True)
        monkeypatch.syspath_prepend(self.source)

    def write(self, module: str, text: str) -> None:
        (self.source / f"{module}.py").write_text(text)

    def ask(self, home: str | None = None) -> tuple[int, bool]:
        """What the kernel answers here, its modules imported anew, and whether its code came from the disk."""
        if home is not None:
            self._patch.setenv("HOME", home)
        cache_folder.cache_clear()
        try:
            total = importlib.import_module("kernel").total
            return total(np.arange(5)), sum(total.stats.cache_hits.values()) == 1
        finally:
            cache_folder.cache_clear()
            for module in ("kernel", "callee"):
                sys.modules.pop(module, None)

    def start(self) -> "subprocess.Popen[str]":
        """The same in a process of its own."""
        command = [sys.executable, "-c", ASK]
        return subprocess.Popen(command, cwd=self.source, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE)


def result(process: "subprocess.Popen[str]") -> tuple[int, bool]:
    out, err = process.communicate(timeout=120)
    assert (process.returncode, err) == (0, "")
    answer, hits = out.split()
    return int(answer), hits == "1"


@pytest.fixture
def kernel(tmp_path, monkeypatch) -> Kernel:
    return Kernel(tmp_path, monkeypatch)


def test_the_next_process_finds_the_code_and_nothing_is_written_beside_the_source(kernel):
    before = sorted(kernel.source.iterdir())
    assert result(kernel.start()) == (35, False)
    assert result(kernel.start()) == (35, True)
    assert sorted(kernel.source.iterdir()) == before


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null", "relative"])
def test_without_a_home_it_compiles_in_memory(kernel, home):
    assert kernel.ask(home) == (35, False)


def test_code_that_is_cut_off_or_changed_or_not_code_at_all_is_compiled_again(kernel):
    kernel.ask()
    whole = {path: path.read_bytes() for path in kernel.code.iterdir()}
    assert whole
    for spoil in (
        lambda content: b"",
        lambda content: content[:-1],
        lambda content: content[:-100] + bytes([content[-100] ^ 1]) + content[-99:],
        lambda content: b"\x80\x05garbage" * 100,
    ):
        for path, content in whole.items():
            path.write_bytes(spoil(content))
        assert kernel.ask() == (35, False)
    assert kernel.ask() == (35, True)
    for path in whole:
        path.unlink()
        path.mkdir()
    assert kernel.ask() == (35, False)


def test_code_is_compiled_again_when_what_it_was_made_of_has_changed(kernel):
    kernel.ask()
    kernel.write("kernel", "\n\n# two lines down\n" + KERNEL)
    assert kernel.ask() == (35, True)
    kernel.write("kernel", KERNEL.replace("OFFSET = 1", "OFFSET = 2"))
    assert kernel.ask() == (40, False)
    kernel.write("callee", CALLEE.replace("HEAVY = 3", "HEAVY = 4"))
    assert kernel.ask() == (50, False)
    kernel.write("callee", CALLEE.replace("value * ", "value + "))
    assert kernel.ask() == (10 + 15 + 10, False)
    assert kernel.ask() == (35, True)


@pytest.mark.slow
def test_processes_that_compile_at_once_do_not_disturb_each_other(kernel):
    assert {answer for answer, _ in map(result, [kernel.start() for _ in range(3)])} == {35}
    assert kernel.ask() == (35, True)


def test_code_from_a_folder_that_others_can_write_is_not_loaded(kernel):
    kernel.ask()
    kernel.code.chmod(0o777)
    assert kernel.ask() == (35, False)


@pytest.fixture
def folder_in(tmp_path, monkeypatch):
    """What `cache_folder` says of a base folder."""

    def answer(base: Path) -> Path | None:
        monkeypatch.setenv("NUMBA_CACHE_DIR", str(base))
        return cache_folder.__wrapped__()

    return answer


def test_the_folder_is_made_for_its_user_alone(tmp_path, folder_in):
    folder = folder_in(tmp_path / "new")
    assert folder == tmp_path / "new" / "esprof" / "kernels"
    assert folder.stat().st_mode & 0o777 == 0o700


def test_a_folder_that_a_stranger_could_replace_is_refused_unless_sticky(tmp_path, folder_in):
    base = tmp_path / "shared"
    assert folder_in(base)
    base.chmod(0o777)
    assert folder_in(base) is None
    base.chmod(0o1777)
    assert folder_in(base)
    base.chmod(0o775)  # by the user's own group, as some systems make every folder
    assert folder_in(base)


def test_a_link_is_judged_by_where_it_leads(tmp_path, folder_in):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "base").symlink_to(elsewhere)
    assert folder_in(tmp_path / "base") == elsewhere / "esprof" / "kernels"
    elsewhere.chmod(0o777)
    assert folder_in(tmp_path / "base") is None


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(tmp_path, folder_in):
    for owned in (tmp_path / "base" / "esprof" / "kernels", tmp_path / "base"):
        folder = folder_in(tmp_path / "base")
        assert folder
        os.chown(owned, 12345, 12345)
        assert folder_in(tmp_path / "base") is None
        os.chown(owned, 0, 0)


def test_a_relative_folder_is_refused(folder_in):
    assert folder_in(Path("here")) is None
