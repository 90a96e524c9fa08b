"""Soak esprof: elastic jobs of many steps under recorder, tuning loop and page, with all that befalls jobs of days.

    python -m benchmarks.soak [--jobs ddp gan distillation] [--steps 50000] [--seed 1] [--events kill=100 …] [--keep DIR]
    python -m benchmarks.soak --forked --steps 4000 --events kill=100 plan=100 [--jobs …] [--seed 1] [--keep DIR]

A tiny job (`benchmarks.soak.job`) runs under `esprof record` and `esprof elastic launch`, beside `esprof tune` and a
visited `esprof serve`. Events drawn from the seed befall it: SIGKILL to a rank (kill) or to all (crash), SIGTERM to a rank
(drain) or to the launcher (leave), another number of ranks (scale), plans that move ESTs and change the interval of
checkpoints (plan), SIGSTOP to any process for seconds (stop), a full disk under checkpoints and telemetry (full disk; a
tmpfs, which needs root), a clock of the ranks that is wrong by an hour or a day for seconds (clock; only Python's
`time.time` and `time.time_ns` of the ranks), and SIGKILL to tuning loop or page (helper). After 60 % of the steps no event
ends a rank any more, so that growth shows. With `--forked` the soak forks the ranks itself, one to three at each start: a
kill costs a second, but there is no launcher, recorder, tuning loop or page.

Prints a JSON line for each figure: memory, descriptors and threads of each role and the size of each folder, as growth per
1,000 steps (Theil-Sen with its 95 % interval); the events; the noted steps whose bits are those of one undisturbed process.
Ends with code 1 if a bit differs, a step is lost, or something grows.
"""

import argparse
import json
import multiprocessing
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections import Counter, defaultdict
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from threading import Event, Thread

from benchmarks.figures import show
from benchmarks.soak import processes
from benchmarks.soak.events import EVENTS, MOST_RANKS, OF_LAUNCHED, Site, schedule
from benchmarks.soak.forked import ForkedRanks
from benchmarks.soak.growth import Sample, growth
from benchmarks.soak.job import KINDS, NOTED_EVERY, alone
from esprof import load
from esprof.core.errors import EsprofError
from esprof.run.logs import HISTORY, ROUNDS
from esprof.verbs import command_line

PER_1000_STEPS = {
    "kill": 2.0,
    "crash": 0.2,
    "drain": 0.5,
    "leave": 0.1,
    "scale": 0.3,
    "plan": 2.0,
    "stop": 0.5,
    "full disk": 0.3,
    "clock": 0.5,
    "helper": 0.3,
}
"""Events of each kind in 1,000 steps, unless --events says how many there are."""
ROOT = Path(__file__).parents[2]
_STEPS_BETWEEN = 30
"""Steps that the job makes between two events."""
_SAMPLE_S = 1.0
_POLL_S = 0.03
_REST_S = 5.0
"""Between two lives of a helper."""
_STUCK_S = 300.0
"""Without a step for so long a job is killed and started again, and counted."""
_UNITS = {"memory": "MiB", "descriptors": "descriptors", "threads": "threads", "size": "MiB", "files": "files"}


@dataclass
class Soaked:
    """What was seen of one job."""

    samples: dict[tuple[str, str], list[Sample]] = field(default_factory=lambda: defaultdict(list))
    """By (quantity, role or folder)."""
    done: Counter[str] = field(default_factory=Counter)
    launches: int = 0
    stuck: int = 0


class Beside:
    """The tuning loop and the page, started again when they end, and a visitor of the page."""

    def __init__(self, site: Site) -> None:
        self._site, self._over = site, Event()
        self._threads = [Thread(target=self._serve, daemon=True), Thread(target=self._tune, daemon=True)]
        self.visits = 0
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._over.set()
        for thread in self._threads:
            thread.join()

    def _tune(self) -> None:
        while not self._over.wait(_REST_S):
            with _quiet("tune", "--attach", str(self._site.run), "-q") as process:
                while process.poll() is None and not self._over.wait(0.5):
                    pass
                process.kill()

    def _serve(self) -> None:
        while not self._over.wait(1.0):
            with _quiet("serve", str(self._site.run), "--port", "0") as process:
                assert process.stdout is not None
                address = process.stdout.readline().decode().strip()
                while process.poll() is None and not self._over.wait(2.0):
                    with suppress(OSError), urllib.request.urlopen(address, timeout=10) as answer:
                        self.visits += bool(answer.read())
                process.kill()


def _quiet(*words: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(command_line(*words), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, cwd=ROOT)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", nargs="+", choices=list(KINDS), default=list(KINDS))
    parser.add_argument("--steps", type=int, default=50_000, help="of each job")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--events", nargs="+", type=_counted, metavar="NAME=COUNT", help="of each job; others do not occur"
    )
    parser.add_argument("--forked", action="store_true", help="fork the ranks; nothing runs around them")
    parser.add_argument("--keep", type=Path, help="folder for all files; a temporary one otherwise")
    options = parser.parse_args()
    counts = dict(options.events or {name: round(rate * options.steps / 1000) for name, rate in PER_1000_STEPS.items()})
    if options.forked:
        counts = {name: 0 if name in OF_LAUNCHED else count for name, count in counts.items()}
    whole = True
    for kind in options.jobs:
        folder = Path(tempfile.mkdtemp(dir=options.keep, prefix=f"soak-{kind}-"))
        whole &= _soak(kind, folder, options.steps, options.seed, counts, is_forked=options.forked)
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return 0 if whole else 1


def _counted(text: str) -> tuple[str, int]:
    name, _, count = text.partition("=")
    if name not in EVENTS or not count.isdecimal():
        raise argparse.ArgumentTypeError(f"{text} is not one of {', '.join(EVENTS)} and a number, as in kill=100")
    return name, int(count)


def _soak(kind: str, folder: Path, steps: int, seed: int, counts: dict[str, int], *, is_forked: bool) -> bool:
    """Soak one job, print what was seen, and return whether it is as it should be."""
    site, began = Site(folder, fills=bool(counts.get("full disk"))), time.monotonic()
    if counts.get("full disk") and site.no_disk:
        print(f"no full disk: {site.no_disk}", file=sys.stderr)
        counts = counts | {"full disk": 0}
    draw = random.Random(f"{seed} {kind}")
    try:
        waiting = schedule(draw, steps, counts, growth_shows=not is_forked)
        beside = Beside(site) if not is_forked else None
        try:
            seen = _live(site, kind, steps, waiting, draw, is_forked=is_forked)
        finally:
            if beside is not None:
                beside.close()
        took_s = time.monotonic() - began
        show("steps", steps, "steps", {"job": kind, "seed": seed, "took_s": round(took_s), "launches": seen.launches})
        show("events", seen.done.total(), "events", {"job": kind, "visits": beside.visits if beside else 0} | seen.done)
        flat = [_show_growth(kind, steps, *what, samples) for what, samples in sorted(seen.samples.items())]
        return all([*flat, _show_bits(kind, folder, steps), _show_files(kind, site), seen.stuck == 0])
    finally:
        site.close()


def _live(
    site: Site, kind: str, steps: int, waiting: list[tuple[int, str]], draw: random.Random, *, is_forked: bool
) -> Soaked:
    """The life of the job, to its end."""
    seen = Soaked()
    job: subprocess.Popen[bytes] | ForkedRanks | None = None
    before = made = 0
    sampled_s = moved_s = time.monotonic()
    with (site.folder / "log").open("ab") as log:
        while True:
            if job is None or job.poll() is not None:
                if job is not None and job.returncode == 0 and site.next_step == steps:
                    return seen
                seen.launches += 1
                if is_forked:
                    job = site.forked = ForkedRanks(draw.randint(1, MOST_RANKS), site.folder, kind, steps)
                else:
                    job = _start(site, kind, steps, seen.launches, log)
            now, now_s = site.next_step, time.monotonic()
            made, moved_s = made + max(0, now - before), now_s if now != before else moved_s
            before = now
            if waiting and now >= waiting[0][0] and made >= _STEPS_BETWEEN:
                _, event = waiting.pop(0)
                time.sleep(draw.uniform(0, 0.05))
                EVENTS[event](site, draw)
                seen.done[event] += 1
                made = 0
            if now_s - sampled_s >= _SAMPLE_S and now < steps:  # Then the recorder reads all that it has.
                sampled_s = now_s
                _sample(site, now, seen)
            if now_s - moved_s > _STUCK_S:
                seen.stuck += 1
                moved_s = now_s
                for pid in site.pids("rank", "launcher", "recorder"):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(_POLL_S)


def _start(site: Site, kind: str, steps: int, number: int, log: object) -> subprocess.Popen[bytes]:
    record = ["-q", "-o", str(site.folder / f"recorded-{number}"), "--every", "1000", "--steps", "3"]
    record += ["--max-log", "1M", "--max-trace", "4M"]  # Reached by long lives, which shows that they are bounds.
    launch = ["--procs", "2", "--most", "3", "--folder", str(site.launch), "--", "-m", "benchmarks.soak.job"]
    job = command_line("elastic", "launch", *launch, str(site.folder), kind, str(steps))
    return subprocess.Popen(command_line("record", *record, "--", *job), stdout=log, stderr=log, cwd=ROOT)  # type: ignore[call-overload]


def _sample(site: Site, step: int, seen: Soaked) -> None:
    for one in processes.held(processes.of(site.folder)):
        values = {"memory": one.memory_mb, "descriptors": one.descriptors, "threads": one.threads}
        for what, value in values.items():
            seen.samples[what, one.role].append(Sample(what, one.pid, step, value))
    recorded = site.folder / f"recorded-{seen.launches}"
    for name, folder in {
        "run": site.run,
        "checkpoints": site.run.with_name("checkpoints"),
        "launch": site.launch,
    }.items():
        _sample_folder(name, folder, 0, step, seen)
    _sample_folder("recording", recorded, seen.launches, step, seen)


def _sample_folder(name: str, folder: Path, of: int, step: int, seen: Soaked) -> None:
    for what, value in zip(("size", "files"), processes.size_of(folder), strict=True):
        seen.samples[what, name].append(Sample(what, of, step, value))


def _show_growth(kind: str, steps: int, what: str, of: str, samples: list[Sample]) -> bool:
    found = growth(samples)
    if found is None:
        return True
    about = {
        "job": kind,
        "of": of,
        "low": round(found.low, 5),
        "high": round(found.high, 5),
        "level": round(found.level, 2),
        "samples": found.samples,
        "flat": found.is_flat,
    }
    show(f"{what}_growth", found.per_1000, f"{_UNITS[what]} in 1,000 steps", about)
    return found.is_flat


def _show_bits(kind: str, folder: Path, steps: int) -> bool:
    """Whether all noted steps are there, each with the bits of one undisturbed process."""
    undisturbed = multiprocessing.get_context("fork").Process(target=alone, args=(folder, kind, steps))
    undisturbed.start()
    undisturbed.join()
    noted, expected = _notes(folder / "notes.jsonl"), _notes(folder / "alone.jsonl")
    lost = [step for step in expected if step not in noted]
    differing = [step for step, bits in noted.items() if bits != expected.get(step)]
    about = {"job": kind, "noted": len(expected), "every": NOTED_EVERY, "lost": len(lost)}
    about["last_is_equal"] = noted.get(steps) == expected.get(steps)
    show("steps_with_other_bits", len(differing), "steps", about)
    return not lost and not differing and bool(expected)


def _notes(path: Path) -> dict[int, set[str]]:
    """The bits of each noted step; several where a step was repeated with other bits."""
    found: dict[int, set[str]] = {}
    for line in path.read_text().splitlines():
        with suppress(ValueError):  # A rank was killed within a line.
            step, bits = json.loads(line)
            found.setdefault(step, set()).add(bits)
    return found


def _show_files(kind: str, site: Site) -> bool:
    """Whether what the job leaves can be read."""
    readable = True
    for path in (site.run, *sorted(site.folder.glob("recorded-*"))):
        try:
            warnings = [warning.code for warning in load(path).warnings]
        except EsprofError as error:
            readable, warnings = False, [str(error)]
        show("warnings", len(warnings), "warnings", {"job": kind, "of": path.name, "codes": sorted(set(warnings))})
    events = HISTORY.read(site.run)
    kinds = Counter(event.what for event in events)
    show("history", kinds.total(), "events", {"job": kind, "rounds": len(ROUNDS.read(site.run))} | kinds)
    refusals = Counter(event.reason for event in events if event.what == "refused")
    show("refused_plans", refusals.total(), "plans", {"job": kind, "most": dict(refusals.most_common(3))})
    return readable


if __name__ == "__main__":
    sys.exit(main())
