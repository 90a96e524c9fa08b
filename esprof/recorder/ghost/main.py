"""Run a script as the one real rank of its job, and tell how long its steps took."""

import os
import runpy
import statistics
import sys
from collections.abc import Sequence
from pathlib import Path

from .peers import PeerSchedule, ReplayedPeers

_MAX_LISTED = 5
"""Most peers, and most unknown collectives, that the report lists."""
_USAGE = "usage: python run.py SCRIPT [ARGUMENTS…]  or  python run.py -m MODULE [ARGUMENTS…]"


def main(schedule_file: Path, arguments: Sequence[str]) -> None:
    """Run the script or module of `arguments`. Raises SystemExit as it does."""
    is_module = arguments[:1] == ["-m"]
    words = list(arguments[is_module:])
    if not words or words[0].startswith("-"):
        raise SystemExit(_USAGE)
    if not is_module and not Path(words[0]).exists():
        raise SystemExit(f"{words[0]}: no such script\n{_USAGE}")
    schedule = PeerSchedule.read(schedule_file)
    os.environ |= _environment(schedule)
    from .group import install  # PyTorch reads the environment.

    peers = ReplayedPeers(schedule)
    install(peers, schedule.rank, schedule.world_size)
    sys.argv = words
    sys.path[0] = os.getcwd() if is_module else str(Path(words[0]).resolve().parent)
    try:
        if is_module:
            runpy.run_module(words[0], run_name="__main__", alter_sys=True)
        else:
            runpy.run_path(words[0], run_name="__main__")
    finally:
        print(summary(schedule, peers), file=sys.stderr)


def _environment(schedule: PeerSchedule) -> dict[str, str]:
    """What torchrun would set: the rank has this machine to itself."""
    alone = {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "GROUP_RANK": "0"}
    where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    threads = {} if schedule.threads is None else {"OMP_NUM_THREADS": str(schedule.threads)}
    return {"RANK": str(schedule.rank), "WORLD_SIZE": str(schedule.world_size)} | alone | where | threads


def summary(schedule: PeerSchedule, peers: ReplayedPeers) -> str:
    """What the real rank met, in lines for a person."""
    if not peers.step_ns:
        return (
            f"ghost: no peer has joined in: in {_counted(peers.before, 'collective')} the script did not launch those of "
            "a recorded step in their order. Is it the script of the recording, with its arguments?"
        )
    steps = len(peers.step_ns)
    lines = [
        f"ghost: rank {schedule.rank} met its {_counted(schedule.world_size - 1, 'replayed peer')} in "
        f"{_counted(steps, 'step')}, after {_counted(peers.before, 'collective')} without them",
        _row("step", "median", "mean"),
    ]
    rows = {
        "here": peers.step_ns,
        "recorded": schedule.recorded_ns,
        "replayed": schedule.replayed_ns,
        "no profiler": schedule.plain_ns,
    }
    for title, times_ns in rows.items():
        if times_ns:
            lines.append(_row(title, _ms(statistics.median(times_ns)), _ms(statistics.fmean(times_ns))))
    waits = [f"{_ms(ns / steps)} for rank {rank}" for rank, ns in peers.waited_ns.most_common(_MAX_LISTED) if ns]
    if waits:
        lines.append(f"waited in a step: {', '.join(waits)}")
    for call, count in peers.strangers.most_common(_MAX_LISTED):
        lines.append(f"not in the recording, so ended at once: {call}, {_counted(count, 'time')}")
    return "\n".join(lines)


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"


def _row(*cells: str) -> str:
    title, *values = cells
    return f"{title:12}" + "".join(f"{value:>12}" for value in values)


def _ms(ns: float) -> str:
    return f"{ns / 1e6:.2f} ms"
