"""What befalls the job of a soak: drawn from a seed, and done to its processes, its disk and its clock."""

import mmap
import os
import random
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from benchmarks.soak import processes
from benchmarks.soak.forked import ForkedRanks
from benchmarks.soak.growth import WARM_STEPS
from benchmarks.soak.job import CLOCK, N_EST, STEP
from esprof.core.errors import EsprofError
from esprof.core.plan import Fallback
from esprof.elastic.launch import messages
from esprof.elastic.plans.delivery import deliver
from esprof.elastic.plans.source import PlanFile
from tests.cases.plans import plan_of

MOST_RANKS = 3
DISK_MB = 64
_ENDS_RANKS_UNTIL = 0.6
"""Share of the steps after which no event ends a process, so that growth shows."""
_LAST = 0.95
"""Share of the steps after which there is no event."""
_HOUR_NS = 3_600 * 10**9


class Site:
    """The job of a soak and all that runs beside it, as seen from outside."""

    def __init__(self, folder: Path, *, fills: bool) -> None:
        """`fills`: whether the disk of the job is a small one, which can be filled."""
        self.folder = folder
        self.run, self.launch = folder / "disk" / "run", folder / "launch"
        (folder / "clock").write_bytes(CLOCK.pack(0))
        (folder / "step").write_bytes(STEP.pack(0))
        with (folder / "clock").open("r+b") as clock, (folder / "step").open("r+b") as step:
            self._clock, self._step = mmap.mmap(clock.fileno(), CLOCK.size), mmap.mmap(step.fileno(), STEP.size)
        (folder / "disk").mkdir()
        self.forked: ForkedRanks | None = None
        """The ranks, if no launcher has started them."""
        self.no_disk = _mounted(folder / "disk") if fills else "it is that of the folder"
        """Why the disk of the job cannot be filled; empty if it can."""

    @property
    def next_step(self) -> int:
        return int(STEP.unpack(self._step)[0])

    def set_clock(self, off_ns: int) -> None:
        self._clock[:] = CLOCK.pack(off_ns)

    @property
    def world(self) -> int:
        """Number of ranks; 1 if it is unknown."""
        if self.forked is not None:
            return len(self.forked.pids)
        state = messages.read_state(self.launch)
        return state.world if state is not None else 1

    def pids(self, *roles: str) -> list[int]:
        if self.forked is not None:
            return self.forked.pids if "rank" in roles else []
        found = processes.of(self.folder)
        return [pid for role in roles for pid in found[role]]

    def close(self) -> None:
        if not self.no_disk:
            subprocess.run(["umount", "--lazy", self.folder / "disk"], check=False)


def _mounted(disk: Path) -> str:
    words = ["mount", "-t", "tmpfs", "-o", f"size={DISK_MB}m", "tmpfs", str(disk)]
    try:
        done = subprocess.run(words, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return done.stderr.strip()


def kill(site: Site, draw: random.Random) -> None:
    """SIGKILL to a rank."""
    _signal(draw, site.pids("rank"), signal.SIGKILL)


def crash(site: Site, draw: random.Random) -> None:
    """SIGKILL to all ranks at once, as when a host fails."""
    for pid in site.pids("rank"):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def drain(site: Site, draw: random.Random) -> None:
    """SIGTERM to a rank: all save and leave, and others go on."""
    _signal(draw, site.pids("rank"), signal.SIGTERM)


def leave(site: Site, draw: random.Random) -> None:
    """SIGTERM to the launcher: the job saves and ends, and is started again, with a recorder of its own."""
    _signal(draw, site.pids("launcher"), signal.SIGTERM)


def scale(site: Site, draw: random.Random) -> None:
    """Another number of ranks."""
    messages.want(site.launch, draw.randint(1, MOST_RANKS))


def plan(site: Site, draw: random.Random) -> None:
    """A plan with other places for the ESTs, loader processes and checkpoints. Others may come at the same moment."""
    parts: list[list[int]] = [[] for _ in range(max(1, site.world))]
    for est in range(N_EST):
        draw.choice(parts).append(est)
    every = draw.choice((None, 10, 50))
    made = plan_of(parts, every=every, n_est=N_EST, fallback=Fallback(margin=10.0, window=draw.choice((5, 20))))
    with suppress(EsprofError):
        deliver(made, PlanFile(site.run / "plan.json"), wait_s=0.2)


def stop(site: Site, draw: random.Random) -> None:
    """SIGSTOP to a process for some seconds."""
    pid = _signal(draw, site.pids(*processes.ROLES), signal.SIGSTOP)
    time.sleep(draw.uniform(0.5, 4))
    if pid is not None:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGCONT)


def fill(site: Site, draw: random.Random) -> None:
    """No byte left on the disk of checkpoints and telemetry for some seconds."""
    path = site.folder / "disk" / "filled"
    with suppress(OSError), path.open("wb", buffering=0) as file:
        while file.write(bytes(1 << 16)):
            pass
    time.sleep(draw.uniform(1, 5))
    path.unlink(missing_ok=True)


def jump(site: Site, draw: random.Random) -> None:
    """The clock of the ranks is wrong by an hour or a day for some seconds."""
    site.set_clock(draw.choice((-24, -1, 1, 24)) * _HOUR_NS)
    time.sleep(draw.uniform(1, 5))
    site.set_clock(0)


def helper(site: Site, draw: random.Random) -> None:
    """SIGKILL to the tuning loop or the page."""
    _signal(draw, site.pids("tuner", "page"), signal.SIGKILL)


EVENTS: dict[str, Callable[[Site, random.Random], None]] = {
    "kill": kill,
    "crash": crash,
    "drain": drain,
    "leave": leave,
    "scale": scale,
    "plan": plan,
    "stop": stop,
    "full disk": fill,
    "clock": jump,
    "helper": helper,
}
OF_LAUNCHED = ("leave", "scale", "helper")
"""Events of jobs that esprof's launcher has started."""
ENDS_RANKS = ("kill", "crash", "drain", "leave", "scale")


def schedule(
    draw: random.Random, steps: int, counts: dict[str, int], *, growth_shows: bool = True
) -> list[tuple[int, str]]:
    """(step, event) in order. So that growth shows, no event ends ranks in the last part, and a long job is started again
    before it: only the first processes of a launch are recorded."""
    last = int((_ENDS_RANKS_UNTIL if growth_shows else _LAST) * steps)
    begins = growth_shows and counts.keys() & ENDS_RANKS and steps - last > WARM_STEPS
    found = [(last + 1, "leave")] if begins else []
    for name, count in counts.items():
        until = last if name in ENDS_RANKS else int(_LAST * steps)
        found += [(draw.randint(min(50, steps // 4), max(51, until)), name) for _ in range(count)]
    return sorted(found)


def _signal(draw: random.Random, pids: list[int], number: signal.Signals) -> int | None:
    """Send a signal to one of these processes, and return it."""
    if not pids:
        return None
    pid = draw.choice(sorted(pids))
    with suppress(ProcessLookupError):
        os.kill(pid, number)
    return pid
