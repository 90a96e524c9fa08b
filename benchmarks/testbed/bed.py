"""The bed: hosts that come and go, what runs on them, and its end, whichever way it comes."""

import atexit
import itertools
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from types import FrameType
from typing import IO, NoReturn

from benchmarks.testbed import cgroup, network
from benchmarks.testbed.job import Job
from benchmarks.testbed.owner import bed_of, is_abandoned, new_bed_name
from benchmarks.testbed.system import require_tools
from esprof.core.errors import UsageError

MOST_OF_THE_CORES = 0.8
"""Share of the machine's cores that the hosts may have: with the rest, the kernel and the bed's owner disturb no host."""

_ENTER = 'echo $$ > "$1" && shift && exec nsenter "$@"'
"""Enters cgroup and namespace first, and then becomes the command: its pid and its signals are the command's own."""

Output = IO[bytes] | int | None
"""Where a process writes, as `subprocess.Popen` takes it; None is where the bed's owner writes."""


@dataclass(frozen=True)
class Host:
    """One host: `cpu` in cores, `rate` of its link in each direction, None for as fast as the machine."""

    index: int
    name: str
    cpu: float
    rate: str | None

    @property
    def address(self) -> str:
        return network.address(self.index)


@contextmanager
def hosts(cpu: Sequence[float], rate: Sequence[str | None], queue: int = network.QUEUE) -> Iterator["Bed"]:
    """A bed with a host for each CPU rate (in cores) and link rate (such as "200mbit", or None).

    Each link with a rate loses packets beyond `queue` bytes.

    Removes first what beds left whose owner was killed. Raises BedUnavailable where this machine cannot hold a bed, and
    UsageError for rates that make no sense or ask for too much.
    """
    if len(cpu) != len(rate):
        raise UsageError(f"{len(cpu)} CPU rates for {len(rate)} link rates", remedy="Give one of each to a host.")
    clean()
    bed = Bed(queue)
    with _signals_as_exits():
        try:
            bed.open()
            for cores, link in zip(cpu, rate, strict=True):
                bed.add(cores, link)
            yield bed
        finally:
            bed.close()


def clean() -> list[str]:
    """Remove what beds left whose owner is gone, and return their names. Raises BedUnavailable."""
    require_tools()
    return _sweep(cgroup.find_controller(), is_abandoned)


class Bed:
    """Hosts on one switch. Made by `hosts`."""

    def __init__(self, queue: int) -> None:
        if queue < network.LEAST_QUEUE:
            least = f"The least is {network.LEAST_QUEUE}, a frame."
            raise UsageError(f"no frame fits into a queue of {queue} bytes", remedy=least)
        self.hosts: dict[int, Host] = {}
        self._queue = queue
        self._name = new_bed_name()
        self._controller = cgroup.find_controller()
        self._indices = itertools.count()
        self._ports = itertools.count(29_500)
        self._processes: list[subprocess.Popen[bytes]] = []

    def open(self) -> None:
        atexit.register(self.close)
        network.make_switch(self._switch)

    def add(self, cpu: float, rate: str | None) -> Host:
        """Add a host. Its index is new, even where another host was removed."""
        self._check_cpu(cpu)
        if rate is not None:
            network.bits_per_s(rate)
        index = next(self._indices)
        host = Host(index, f"{self._name}-host{index}", cpu, rate)
        self._group(host).make(cpu)
        network.attach(self._switch, host.name, index)
        network.set_rate(self._switch, host.name, index, rate, self._queue)
        self.hosts[index] = host
        return host

    def remove(self, index: int) -> None:
        """Kill what runs on a host, and take the host away."""
        host = self._host(index)
        self._group(host).remove()
        network.detach(self._switch, host.name, index)
        del self.hosts[index]

    def set_rate(self, index: int, rate: str | None) -> None:
        """Change the rate of a host's link at once; None is as fast as the machine.

        What the link holds in its queue is sent at the new rate; with None it is lost, and sent again.
        """
        host = self._host(index)
        network.set_rate(self._switch, host.name, index, rate, self._queue)
        self.hosts[index] = replace(host, rate=rate)

    def set_cpu(self, index: int, cpu: float) -> None:
        """Change how many cores a host has at once."""
        host = self._host(index)
        self._check_cpu(cpu, instead_of=host.cpu)
        self._group(host).set_cpu(cpu)
        self.hosts[index] = replace(host, cpu=cpu)

    def run(
        self,
        index: int,
        argv: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        stdout: Output = None,
        stderr: Output = None,
    ) -> subprocess.Popen[bytes]:
        """Start a command on a host; the process that is returned is the command itself, not a shell around it.

        It has this process's environment, one thread for numerical libraries, the host's interface for gloo, and `env`.
        """
        host = self._host(index)
        place = [str(self._group(host).procs), f"--net={network.NAMESPACES / host.name}", "--"]
        environ = os.environ | {"OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": network.INTERFACE} | dict(env or {})
        process = subprocess.Popen(
            ["sh", "-c", _ENTER, "sh", *place, *argv],
            env=environ,
            stdin=subprocess.DEVNULL,
            stdout=stdout,
            stderr=stderr,
        )
        self._processes.append(process)
        return process

    def torchrun(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, *, stdout: Output = None, stderr: Output = None
    ) -> Job:
        """Start `python ARGV` on each host, with the variables that `torchrun` would set for one worker a node.

        There is no agent beside the worker, which would take from the host's CPU quota.
        """
        if not self.hosts:
            raise UsageError("the bed has no host to run on", remedy="Add one (Bed.add).")
        port = str(next(self._ports))
        first = next(iter(self.hosts.values()))
        shared = {"WORLD_SIZE": str(len(self.hosts)), "MASTER_ADDR": first.address, "MASTER_PORT": port}
        processes = []
        for rank, index in enumerate(self.hosts):
            place = {"RANK": str(rank), "GROUP_RANK": str(rank), "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
            worker = {**shared, **place, **(env or {})}
            processes.append(self.run(index, [sys.executable, *argv], worker, stdout=stdout, stderr=stderr))
        return Job(processes)

    def close(self) -> None:
        """Kill what runs on the hosts and remove them all. A signal that comes meanwhile waits until that is done."""
        atexit.unregister(self.close)
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            _sweep(self._controller, lambda name: bed_of(name) == self._name)
            for process in self._processes:
                process.wait()
            self.hosts.clear()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    @property
    def _switch(self) -> str:
        return f"{self._name}-switch"

    def _group(self, host: Host) -> cgroup.Group:
        return self._controller.group(host.name)

    def _host(self, index: int) -> Host:
        if index not in self.hosts:
            raise UsageError(f"no host {index}", remedy=f"There are: {', '.join(map(str, self.hosts)) or 'none'}.")
        return self.hosts[index]

    def _check_cpu(self, cpu: float, instead_of: float = 0.0) -> None:
        least = cgroup.LEAST_QUOTA_US / cgroup.PERIOD_US
        if not cpu >= least:  # Not a number is refused, too.
            raise UsageError(f"a host cannot have {cpu:g} cores", remedy=f"The kernel gives no less than {least:g}.")
        cores = len(os.sched_getaffinity(0))
        asked = sum(host.cpu for host in self.hosts.values()) - instead_of + cpu
        most = MOST_OF_THE_CORES * cores
        if asked > most + 1e-9:
            reason = f"the hosts would have {asked:g} of {cores} cores"
            raise UsageError(reason, remedy=f"Stay at or below {most:g}: above, the machine's own work disturbs them.")


def _sweep(controller: cgroup.Controller, ours: Callable[[str], bool]) -> list[str]:
    """Remove groups, with all that runs in them, and namespaces whose names are `ours`; returns the beds' names."""
    groups = [name for name in controller.names() if ours(name)]
    namespaces = [name for name in network.names() if ours(name)]
    for name in groups:
        controller.group(name).remove()
    for name in namespaces:
        network.remove(name)
    return sorted({bed for name in groups + namespaces if (bed := bed_of(name))})


@contextmanager
def _signals_as_exits() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end this process by an exception, as SIGINT does, unless somebody handles them already."""
    mine = threading.current_thread() is threading.main_thread()
    taken = [s for s in (signal.SIGTERM, signal.SIGHUP) if mine and signal.getsignal(s) is signal.SIG_DFL]
    for number in taken:
        signal.signal(number, _exit)
    try:
        yield
    finally:
        for number in taken:
            signal.signal(number, signal.SIG_DFL)


def _exit(number: int, frame: FrameType | None) -> NoReturn:
    raise SystemExit(128 + number)
