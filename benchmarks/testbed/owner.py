"""Names that carry their owner: whose a namespace or cgroup is, and whether that process still lives."""

import itertools
import os
import re
from pathlib import Path

_NAME = re.compile(r"(?P<bed>esprof-bed-(?P<pid>\d+)-(?P<start>\d+)-\d+)-(switch|host\d+)")
_serial = itertools.count()


def new_bed_name() -> str:
    """A name for a bed of this process that no other bed bears, or ever bore since the machine started."""
    pid = os.getpid()
    return f"esprof-bed-{pid}-{start_time(pid)}-{next(_serial)}"


def bed_of(name: str) -> str | None:
    """The bed that a namespace or cgroup belongs to; None where `name` is not a bed's."""
    match = _NAME.fullmatch(name)
    return match["bed"] if match else None


def is_abandoned(name: str) -> bool:
    """Whether `name` is a bed's, and the process that made it is gone."""
    match = _NAME.fullmatch(name)
    return match is not None and start_time(int(match["pid"])) != int(match["start"])


def start_time(pid: int) -> int | None:
    """When process `pid` started, in clock ticks since boot; None where it is gone or a zombie.

    With the pid, which is used again sooner or later, it names one process for as long as the machine is up.
    """
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The second field is the command's name in parentheses, which may hold spaces and parentheses itself.
    fields = stat.rpartition(")")[2].split()
    state, started = fields[0], fields[19]
    return None if state in "ZX" else int(started)
