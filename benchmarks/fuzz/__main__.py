"""Hand changed files to everything in esprof that reads files of others.

    python -m benchmarks.fuzz --inputs 1000000 --seed 1 [--only NAME …] [--workers 2] [--keep DIR]
    python -m benchmarks.fuzz --guided SECONDS [--only NAME …]        # needs atheris

hypothesis draws the changes of a valid file: of its bytes, of its words, of its JSON values; in folders that other
processes write to, also what else may take its place. `--guided` has atheris mutate the bytes by the code that they reach. A
reader may raise esprof's own errors only, has 10 s of CPU time (120 s in all), and 1 GiB of memory more than before.

Prints a table of what became of the inputs of each target, and a JSON line for all. Ends with code 1 after any fault;
`--keep` gets the inputs that showed one. Ctrl-C ends it early. ESPROF_MEMORY_LIMIT is 64 MiB.
"""

import argparse
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from pathlib import Path
from typing import Any

from benchmarks.figures import show, table
from benchmarks.fuzz.targets import TARGETS
from benchmarks.fuzz.worker import Counts, keep, work

_AT_ONCE = 2_000
"""Inputs of one process: hypothesis remembers each."""
_DEAD_AFTER_S = 120.0
"""A process without a sign of life for so long waits for something, or is stuck in code that no signal interrupts."""
_PROCESSES = multiprocessing.get_context("fork")


@dataclass
class _Part:
    """A running process, and its share of a target's inputs."""

    name: str
    process: Any
    result: Connection
    beat: Any
    folder: Path


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--inputs", type=int, default=1_000_000, help="of all targets together")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", nargs="+", choices=list(TARGETS), default=list(TARGETS), metavar="NAME")
    parser.add_argument("--workers", type=int, default=2, help="processes at a time")
    parser.add_argument("--keep", type=Path, help="folder for inputs that show a fault")
    parser.add_argument("--guided", type=int, metavar="SECONDS", help="for each target, by atheris")
    options = parser.parse_args()
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None) as folder:
        if options.guided:
            from benchmarks.fuzz.guided import guided

            found = guided(options.only, options.guided, Path(folder), options.keep)
        else:
            parts = _parts(options.only, options.inputs, options.seed)
            found = _run(parts, options.workers, Path(folder), options.keep)
    _print(found, time.monotonic() - began, options.seed)
    return 1 if any(counts.faults for counts in found.values()) else 0


def _parts(names: Iterable[str], inputs: int, seed: int) -> list[tuple[str, int, int]]:
    """(target, seed, inputs) of each process, in turns over the targets."""
    shares = {name: TARGETS[name].share for name in names}
    found = []
    for number, (name, share) in enumerate(shares.items()):
        count = max(1, round(inputs * share / sum(shares.values())))
        for turn, first in enumerate(range(0, count, _AT_ONCE)):
            found.append((turn, name, seed * 1_000_003 + number * 10_007 + turn, min(_AT_ONCE, count - first)))
    return [(name, of, count) for _, name, of, count in sorted(found, key=lambda part: part[0])]


def _run(parts: list[tuple[str, int, int]], workers: int, folder: Path, kept: Path | None) -> dict[str, Counts]:
    found = {name: Counts() for name, _, _ in parts}
    waiting, running = iter(enumerate(parts)), list[_Part]()
    with suppress(KeyboardInterrupt):  # Then what has been counted is printed.
        while True:
            while len(running) < workers and (started := _start(waiting, folder, kept)) is not None:
                running.append(started)
            if not running:
                break
            wait([part.result for part in running], timeout=1.0)
            for part in list(running):
                counts = _ended(part, kept)
                if counts is not None:
                    found[part.name].add(counts)
                    running.remove(part)
    for part in running:
        part.process.kill()
        part.process.join()
    return found


def _start(waiting: Iterator[tuple[int, tuple[str, int, int]]], folder: Path, kept: Path | None) -> _Part | None:
    number, (name, seed, count) = next(waiting, (0, ("", 0, 0)))
    if not count:
        return None
    receives, sends = _PROCESSES.Pipe(duplex=False)
    beat, own = _PROCESSES.Value("d", time.monotonic()), folder / str(number)
    found = kept / name if kept is not None else None
    process = _PROCESSES.Process(target=work, args=(TARGETS[name], own, found, seed, count, sends, beat))
    process.start()
    sends.close()
    return _Part(name, process, receives, beat, own)


def _ended(part: _Part, kept: Path | None) -> Counts | None:
    """What a process has counted; None while it runs. One that died or is stuck has one fault."""
    try:
        counts = part.result.recv() if part.result.poll() else None
    except EOFError:
        part.process.join()
        counts = Counts(inputs=1, faults={f"the process ended with code {part.process.exitcode}": 1})
    if counts is None and time.monotonic() - part.beat.value > _DEAD_AFTER_S:
        part.process.kill()
        counts = Counts(inputs=1, faults={f"no answer after {_DEAD_AFTER_S:g} s": 1})
    if counts is None:
        return None
    part.process.join()
    if kept is not None and part.process.exitcode:
        keep(part.folder, kept / part.name, next(iter(counts.faults), ""))
    return counts


def _print(found: dict[str, Counts], took_s: float, seed: int) -> None:
    every = Counts()
    rows = []
    for name, counts in found.items():
        every.add(counts)
        rows.append((name, *_numbers(counts)))
    print(table(["target", *(f">{title}" for title in _TITLES)], [*rows, ("all", *_numbers(every))]))
    for name, counts in found.items():
        for fault, times in counts.faults.items():
            print(f"{name}: {times} × {fault}", file=sys.stderr)
    about = {"refused": every.refused, "answered": every.answered, "seed": seed, "took_s": round(took_s)}
    show("inputs", every.inputs, "inputs", about)
    show("faults", sum(every.faults.values()), "inputs", {"kinds": len(every.faults)})


_TITLES = ("inputs", "refused", "answered", "faults", "longest, s")


def _numbers(counts: Counts) -> tuple[str, ...]:
    numbers = (counts.inputs, counts.refused, counts.answered, sum(counts.faults.values()))
    return (*(f"{number:,}" for number in numbers), f"{counts.longest_s:.2f}")


if __name__ == "__main__":
    sys.exit(main())
