"""CPU quotas by the cpu controller of cgroup v1 or v2. No other controller is touched."""

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path

from benchmarks.testbed.system import BedUnavailable

PERIOD_US = 10_000
"""The quota is handed out anew each 10 ms: with the kernel's default of 100 ms, a step could fall into one long pause."""
LEAST_QUOTA_US = 1_000
"""Least CPU quota that the kernel takes, µs a period."""
_FIRST = {True: ("cpu.weight", 10_000), False: ("cpu.shares", 262_144)}
"""File and value of the heaviest weight, of v2 (True) and of v1: all else on the machine gets what the hosts leave, at
least a fifth."""
PATIENCE_S = 10.0
"""How long killed processes may take to be gone."""


@dataclass(frozen=True)
class Controller:
    """Where the cpu controller's hierarchy is mounted; `unified` is cgroup v2."""

    root: Path
    unified: bool

    def group(self, name: str) -> "Group":
        return Group(self.root / name, self.unified)

    def names(self) -> list[str]:
        """Names of the groups right below the root."""
        return [entry.name for entry in self.root.iterdir() if entry.is_dir()]


@dataclass(frozen=True)
class Group:
    """A cgroup with a CPU quota of its own, which may not exist yet."""

    path: Path
    unified: bool

    @property
    def procs(self) -> Path:
        """The file that a process enters the group by."""
        return self.path / "cgroup.procs"

    def make(self, cpu: float) -> None:
        """Make the group. Raises BedUnavailable where that is not allowed."""
        try:
            self.path.mkdir()
            self.set_cpu(cpu)
            weight, heaviest = _FIRST[self.unified]
            (self.path / weight).write_text(str(heaviest))
        except OSError as error:
            reason = f"a cgroup with a CPU quota cannot be made: {error.strerror}"
            raise BedUnavailable(reason, path=self.path) from error

    def set_cpu(self, cpu: float) -> None:
        """Let the group's processes have `cpu` cores together, such as 0.3."""
        quota = round(cpu * PERIOD_US)
        if self.unified:
            (self.path / "cpu.max").write_text(f"{quota} {PERIOD_US}")
        else:
            (self.path / "cpu.cfs_period_us").write_text(str(PERIOD_US))
            (self.path / "cpu.cfs_quota_us").write_text(str(quota))

    def remove(self) -> None:
        """Kill what runs in the group, and what that starts meanwhile, and remove the group.

        Another bed's clean-up may be doing the same. Raises OSError where the group stays busy.
        """
        deadline = time.monotonic() + PATIENCE_S
        while self.path.exists():
            for pid in self._processes():
                _kill(pid)
            try:
                self.path.rmdir()
            except FileNotFoundError:
                return
            except OSError:  # Busy: what was killed is not gone yet, or a new process came in.
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.005)

    def _processes(self) -> list[int]:
        try:
            return [int(pid) for pid in self.procs.read_text().split()]
        except OSError:  # The group is gone: ENOENT, or ENODEV between opening and reading.
            return []


def find_controller(mounts: Path = Path("/proc/self/mounts")) -> Controller:
    """The mounted hierarchy that holds the cpu controller. Raises BedUnavailable where none does."""
    for line in mounts.read_text().splitlines():
        _, point, kind, options, *_ = line.split()
        if kind == "cgroup" and "cpu" in options.split(","):
            return Controller(Path(point), unified=False)
        if kind == "cgroup2" and "cpu" in (Path(point) / "cgroup.controllers").read_text().split():
            return _delegating(Path(point))
    reason = "no cgroup hierarchy with the cpu controller is mounted"
    raise BedUnavailable(reason, remedy="The kernel needs CONFIG_CFS_BANDWIDTH; /sys/fs/cgroup has to be mounted.")


def _delegating(root: Path) -> Controller:
    """A v2 hierarchy, whose root must hand the controller on. That is the system's setting, and is left alone."""
    switch = root / "cgroup.subtree_control"
    if "cpu" not in switch.read_text().split():
        raise BedUnavailable("the cpu controller is not handed on to groups", path=root, remedy=f"echo +cpu > {switch}")
    return Controller(root, unified=True)


def _kill(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return
