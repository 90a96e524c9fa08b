"""The processes of a soak, found by their command lines, and what they hold."""

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")

ROLES = {
    "rank": ("benchmarks.soak.job",),
    "launcher": ("elastic", "launch"),
    "recorder": ("record", "-q"),
    "tuner": ("tune", "--attach"),
    "page": ("serve", "--port"),
}
"""Role -> words of its command line, in this order."""


@dataclass(frozen=True)
class Held:
    """What a process holds."""

    role: str
    pid: int
    memory_mb: float
    """Resident set."""
    descriptors: int
    threads: int


def of(folder: Path) -> dict[str, list[int]]:
    """Processes by role, of a soak in this folder: its path is in their command lines."""
    found: dict[str, list[int]] = {role: [] for role in ROLES}
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            words = path.read_bytes().decode(errors="replace").split("\0")
            if any(word.startswith(str(folder)) for word in words) and (role := _role(words)) is not None:
                found[role].append(int(path.parent.name))
    return found


def _role(words: list[str]) -> str | None:
    """Its role. The command of the recorder contains that of the launcher, and this one that of the ranks: the first words
    decide."""
    firsts = {}
    for role, wanted in ROLES.items():
        places = [words.index(word) for word in wanted if word in words]
        if len(places) == len(wanted):
            firsts[role] = places[0]
    return min(firsts, key=firsts.__getitem__) if firsts else None


def held(by_role: dict[str, list[int]]) -> Iterator[Held]:
    """What each of these processes holds now."""
    for role, pids in by_role.items():
        for pid in pids:
            with suppress(OSError, ValueError, IndexError):
                proc = Path("/proc") / str(pid)
                resident = int((proc / "statm").read_text().split()[1]) * _PAGE_BYTES
                threads = sum(1 for _ in (proc / "task").iterdir())
                yield Held(role, pid, resident / (1 << 20), sum(1 for _ in (proc / "fd").iterdir()), threads)


def size_of(folder: Path) -> tuple[float, int]:
    """(MiB, number of files) in a folder."""
    total = count = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size
                count += 1
    return total / (1 << 20), count
