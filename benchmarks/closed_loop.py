"""The closed loop on unlike hosts: what `esprof tune` makes of a job, beside the best that there is.

    python -m benchmarks.closed_loop [--cases uneven "slow links" …] [--keep DIR]
    python -m benchmarks.closed_loop --drawn 6 --seed 1 [--keep DIR]    # cases that nobody has chosen

On the test bed (root), hosts have unlike CPU rates and links, and in some cases one changes in mid-run. A job of ESTs starts
with an even split, and the loop tunes it while it runs. Then another job on the same hosts, as they are at the end, goes
through all assignments in several rounds, and its steps are timed from outside: the even split, the advised one, the best.

Hosts and models of the named cases were at hand when the loop's rules were made; those that are drawn were not.

Prints a JSON line for each round (predicted gain against measured, in points), for each case (the advised step against the
best, time and steps until the loop came to it, steps with plans that were taken back, steps from a change of the hosts to
the first trial, whether the training is that of a job on one process, bit by bit), and for all.
"""

import argparse
import itertools
import json
import os
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean, median
from threading import Event, Thread

import msgspec

from benchmarks.figures import show
from benchmarks.testbed.bed import Bed, hosts
from esprof.analyzers.advisors.compression.answer import MAX_VNMSE
from esprof.analyzers.advisors.job.makespan import in_ranges
from esprof.core.assignment import Assignment
from esprof.elastic.plans.tuning_loop import VARIABLE
from esprof.reports.live.tuning import Tuner, TuningSettings
from esprof.run.logs import HISTORY, ROUNDS, LiveStep, Round, Tail

COMPUTES = ("--hidden", "160", "--layers", "3")
"""An EST takes some 30 ms of a core, and the gradient has 3.7 MB."""
SENDS = ("--hidden", "256", "--layers", "3", "--batch", "1")
"""Some 30 ms of a core, and 9.5 MB."""

MOST_CORES = 1.5
"""Of all drawn hosts together, on a machine of two."""

_ENDS_S = 1_200
_STEPS = 6
"""Of each assignment in each turn."""

Ests = tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Case:
    cpu: tuple[float, ...]
    """Cores of each host."""
    rate: tuple[str | None, ...]
    """Of the link of each host."""
    model: tuple[str, ...] = COMPUTES
    n_est: int = 8
    steps: int = 220
    change: Callable[[Bed], None] | None = None
    """What happens to the hosts in mid-run, before step `at`."""
    at: int = 200
    back: Callable[[Bed], None] | None = None
    """What happens before step `back_at`."""
    back_at: int = 400
    ends_with: tuple[tuple[float, ...], tuple[str | None, ...]] | None = None
    """Hosts and links after that; None where nothing has changed."""
    codecs: bool = False
    """Whether codecs may be tried."""
    again: bool = False
    """Whether a new loop begins after each round, although nothing has changed, as often as there is time: none of them
    should advise anything."""


def _slow(bed: Bed) -> None:
    bed.set_cpu(0, 0.3)


def _quick(bed: Bed) -> None:
    bed.set_cpu(0, 0.7)


def _narrow(bed: Bed) -> None:
    bed.set_rate(1, "50mbit")


CASES = {
    "uneven": Case((1.0, 0.5), (None, None)),
    "even": Case((0.7, 0.7), (None, None)),
    "four": Case((0.5, 0.5, 0.25, 0.25), (None,) * 4, n_est=6, steps=200),
    "slow links": Case((0.8, 0.4), ("100mbit", "100mbit")),
    "mixed links": Case((0.6, 0.6, 0.3), ("1gbit", "1gbit", "100mbit"), n_est=6, steps=200),
    "sends": Case((0.8, 0.4), ("1gbit", "1gbit"), SENDS),
    "slows down": Case((0.7, 0.7), (None, None), steps=330, change=_slow, at=150, ends_with=((0.3, 0.7), (None, None))),
    "link degrades": Case(
        (0.7, 0.7, 0.2),
        ("1gbit", "1gbit", "1gbit"),
        n_est=6,
        steps=330,
        change=_narrow,
        at=150,
        ends_with=((0.7, 0.7, 0.2), ("1gbit", "50mbit", "1gbit")),
    ),
    "steady": Case((0.7, 0.7), (None, None), steps=2_000, again=True),
    "codec": Case((0.7, 0.7), ("100mbit", "100mbit"), SENDS, n_est=2, steps=150, codecs=True),
    "leaves and comes back": Case(
        (0.7, 0.7),
        (None, None),
        steps=520,
        change=lambda bed: bed.set_cpu(0, 0.1),
        at=130,
        back=_quick,
        back_at=300,
    ),
}


def drawn(seed: int) -> Case:
    """A case by chance: two to four hosts with 1.6 cores together at most, their links, a model, and ESTs."""
    draw = random.Random(seed)
    world = draw.randint(2, 4)
    cores = [draw.choice((0.2, 0.3, 0.4, 0.6, 0.8, 1.0)) for _ in range(world)]
    rates = draw.choice([(None,), ("1gbit",), ("300mbit",), ("100mbit",), (None, "1gbit", "300mbit", "100mbit")])
    return Case(
        cpu=tuple(round(one * min(1.0, MOST_CORES / sum(cores)), 2) for one in cores),
        rate=tuple(draw.choice(rates) for _ in range(world)),
        model=draw.choice((COMPUTES, SENDS)),
        n_est=draw.randint(max(3, world), 8 if world == 2 else 6),
        steps=200,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--drawn", type=int, default=0, help="so many cases drawn by chance, in place of these")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=3, help="of each assignment, to find the best")
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp())
    off: list[float] = []
    above: list[float] = []
    cases = {name: CASES[name] for name in options.cases}
    if options.drawn:
        seeds = range(100 * options.seed, 100 * options.seed + options.drawn)
        cases = {f"drawn {seed}": drawn(seed) for seed in seeds}
    for name, case in cases.items():
        found, best = run_case(name, case, folder / name.replace(" ", "-"), options.turns)
        off += found
        above += best
    if off:
        show("gain_off", median(off), "points", {"mean": fmean(off), "worst": max(off), "rounds": len(off)})
    if above:
        show("advised_above_best", median(above), "%", {"mean": fmean(above), "worst": max(above), "cases": len(above)})


def run_case(name: str, case: Case, folder: Path, turns: int) -> tuple[list[float], list[float]]:
    """(by how many points each tried gain was off, by how much the last assignment is above the best, %). Of a job that is
    to be left alone it is shown how many rounds did not; it is not measured with other assignments."""
    folder.mkdir(parents=True, exist_ok=True)
    run, saved = folder / "run", folder / "steps.json"
    if not saved.exists():
        saved.write_bytes(msgspec.json.encode(tuned(case, run, folder)))
    steps = msgspec.json.decode(saved.read_bytes(), type=list[LiveStep])
    made = ROUNDS.read(run)
    off = [show_round(name, one) for one in made if one.gain_pct is not None]
    if case.again:
        show("false_advice", sum(one.plan is not None for one in made), "rounds", {"case": name, "of": len(made)})
        return off, []
    adopted = [one.counts for one in made if one.kind == "assignment" and one.outcome in ("kept", "missed")]
    even = Assignment.even(case.n_est, len(case.cpu)).ests
    last = _ests(adopted[-1]) if adopted else even
    found = measured(case, last, folder, turns)
    best = min(found, key=found.__getitem__)
    above = 100 * (found[last] / found[best] - 1)
    context = {
        "counts": list(map(len, last)),
        "even_ms": round(found[even], 1),
        "best_ms": round(found[best], 1),
        "best_counts": list(map(len, best)),
        "above_best_pct": round(above, 2),
        "equal_bits": equal_bits(case, folder),
    }
    show("advised_step", found[last], "ms", context_of(name, case, made, steps) | context)
    return off, [above]


def show_round(name: str, one: Round) -> float:
    """By how many points the gain of a tried plan is off the measured one."""
    assert one.gain_pct is not None
    assert one.predicted_gain_pct is not None
    off = abs(one.predicted_gain_pct - one.gain_pct)
    context = {
        "case": name,
        "counts": one.counts,
        "codec": one.codec,
        "predicted_gain_pct": round(one.predicted_gain_pct, 2),
        "gain_pct": round(one.gain_pct, 2),
        "gain_interval_pct": [one.gain_low_pct, one.gain_high_pct],
        "step_error_pct": one.error_pct,
        "outcome": one.outcome,
        "step": one.step,
        "noticed_step": one.noticed_step,
    }
    show("round_gain_off", off, "points", context)
    return off


def context_of(name: str, case: Case, made: Sequence[Round], steps: Sequence[LiveStep]) -> dict[str, object]:
    """What the loop took: steps and seconds to its last change, steps with plans that were taken back, and steps from a
    change of the hosts to the first trial after it."""
    versions = [step.version for step in steps]
    settled = max((at for at in range(1, len(steps)) if versions[at] != versions[at - 1]), default=0)
    tried = [one for one in made if one.plan is not None]
    taken_back = {version for version, one in enumerate(tried, 1) if one.outcome == "reverted"}
    after = [one.step - case.at for one in tried if case.change is not None and one.step >= case.at]
    return {
        "case": name,
        "cpu": case.cpu,
        "rate": case.rate,
        "rounds": len(made),
        "tried": len(tried),
        "settled_step": settled,
        "settled_s": round(sum(step.took_us for step in steps[:settled]) / 1e6, 1),
        "steps_with_plans_taken_back": sum(version in taken_back for version in versions),
        "steps_from_change_to_trial": after[0] if after else None,
    }


def tuned(case: Case, run: Path, folder: Path) -> list[LiveStep]:
    """Run the job with the loop beside it; its steps."""
    stop, seen, tail = Event(), list[LiveStep](), Tail(run)
    settings = TuningSettings(max_vnmse=MAX_VNMSE if case.codecs else 0.0, most_rounds=int(case.again))

    def tune() -> None:
        while not stop.is_set():
            Tuner(run, settings, stop, lambda one: print(one, file=sys.stderr)).tune()
            if case.again:  # The next one knows none of the steps that this one has seen.
                os.truncate(run / "live.jsonl", 0)

    arguments = [*job(case), "--steps", str(case.steps), "--digest", str(folder / "tuned.json")]
    with hosts(cpu=case.cpu, rate=case.rate) as bed, (folder / "job.log").open("wb") as log:
        running = bed.torchrun(arguments, {VARIABLE: str(run)}, stdout=log, stderr=log)
        thread = Thread(target=tune)
        thread.start()
        try:
            ended = Thread(target=running.wait, args=(_ENDS_S,))
            ended.start()
            changes = [(case.at, case.change), (case.back_at, case.back)]
            while ended.is_alive():
                seen += tail.read()
                for at, change in list(changes):
                    if change is not None and seen and seen[-1].step + 1 >= at:
                        change(bed)
                        changes.remove((at, change))
                ended.join(0.1)
            codes = running.wait(_ENDS_S)
        finally:
            stop.set()
            thread.join()
    assert not any(codes), (folder / "job.log").read_text()
    return seen + tail.read()


def measured(case: Case, last: Ests, folder: Path, turns: int) -> dict[Ests, float]:
    """Each assignment -> what a step takes, ms: the mean over its turns, of the median of each. Of assignments that differ
    only in which of several like hosts has how many ESTs one is tried."""
    cpu, rate = case.ends_with or (case.cpu, case.rate)
    kinds = list(zip(cpu, rate, strict=True))
    even = Assignment.even(case.n_est, len(cpu)).ests
    one_of = {_like(tuple(map(len, ests)), kinds): ests for ests in (even, last)}
    for counts in itertools.product(range(case.n_est + 1), repeat=len(cpu)):
        if sum(counts) == case.n_est:
            one_of.setdefault(_like(counts, kinds), _ests(counts))
    schedule = list(dict.fromkeys([*one_of.values(), even]))
    answer = folder / "measured.json"
    if not answer.exists():
        with hosts(cpu=cpu, rate=rate) as bed, (folder / "measured.part").open("wb") as out:
            turned = ["--schedule", json.dumps(schedule), "--steps", str(_STEPS), "--rounds", str(turns)]
            codes = bed.torchrun([*job(case), *turned], stdout=out).wait(_ENDS_S)
        assert not any(codes), codes
        (folder / "measured.part").rename(answer)
    printed = json.loads(answer.read_text().splitlines()[-1])
    return {
        tuple(map(tuple, ests)): fmean(median(ms[at : at + _STEPS]) for at in range(0, len(ms), _STEPS))
        for ests, ms in zip(printed["schedule"], printed["step_ms"], strict=True)
    }


def _like(counts: Sequence[int], kinds: Sequence[tuple[float, str | None]]) -> tuple[int, ...]:
    """The same for counts that differ only in which of several like hosts has which."""
    sets: dict[tuple[float, str | None], list[int]] = {}
    for count, kind in zip(counts, kinds, strict=True):
        sets.setdefault(kind, []).append(count)
    return tuple(count for kind in sets for count in sorted(sets[kind]))


def _ests(counts: Sequence[int]) -> Ests:
    return Assignment.of(in_ranges(counts)).ests


def job(case: Case) -> list[str]:
    return ["-m", "benchmarks.jobs.elastic", "--n-est", str(case.n_est), *case.model]


def codecs_of(run: Path) -> dict[int, str]:
    """Step -> the codec that a plan has brought there, or "none" where it was taken back."""
    brought = {one.plan: one.codec for one in ROUNDS.read(run) if one.codec}
    events = [event for event in HISTORY.read(run) if event.plan in brought]
    adopted = {event.step: brought[event.plan] for event in events if event.what == "adopted"}
    return adopted | {event.step: "none" for event in events if event.what == "reverted"}


def equal_bits(case: Case, folder: Path) -> bool:
    """Whether the tuned training is that of one process, at every step."""
    static = folder / "static.json"
    if not static.exists():
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=1"]
        codecs = json.dumps(codecs_of(folder / "run"))
        arguments = [*job(case), "--steps", str(case.steps), "--digest", str(static), "--codecs", codecs]
        subprocess.run([*launcher, *arguments], check=True, capture_output=True)
    return bool(json.loads((folder / "tuned.json").read_text()) == json.loads(static.read_text()))


if __name__ == "__main__":
    main()
