"""Advised assignments of ESTs carried out: predictions first, then what each assignment takes.

    python -m benchmarks.assignments [--cases 0 1 2] [--rounds 3] [--keep DIR] [--write-model-errors]

On the test bed (root), hosts have unlike CPU rates, and in one case slow links. A job of eight ESTs runs once, split evenly,
and writes its own Run. From that, the assignments to try are chosen and the step time of each is predicted; both are written
down before any is measured. Then one job alternates between all of them for several rounds, and its steps are timed from
outside. Prints a JSON line an assignment, and one a case: the median and the worst error, the advised one against the
best that was measured, and its gain over the even split. Ends with median and mean over all. Times are means of steps.
"""

import argparse
import itertools
import json
import random
import tempfile
from pathlib import Path
from statistics import fmean, median

import esprof
from benchmarks.model_errors import CarriedOut, write_carried_out
from benchmarks.testbed.bed import hosts
from esprof.analyzers.advisors.job.ests import advise_ests
from esprof.analyzers.advisors.job.makespan import in_ranges
from esprof.core.assignment import Assignment
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.graph.est_load import EstLoad

N_EST = 8
MODEL = ("--hidden", "160", "--layers", "3")
"""An EST takes some 30 ms of a core: a quota is handed out every 10 ms, and shorter ones would be told by chance."""
TRIED = 12
CASES = (
    ((0.6, 0.3), (None, None)),
    ((0.6, 0.3, 0.15), (None, None, None)),
    ((0.6, 0.3, 0.3), ("200mbit", "200mbit", "200mbit")),
)
"""(cores of each host, rate of each link)"""

Ests = tuple[tuple[int, ...], ...]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", type=int, nargs="+", default=range(len(CASES)))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--steps", type=int, default=6, help="of each assignment in each round")
    parser.add_argument("--keep", type=Path)
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    options = parser.parse_args()
    folder = options.keep or Path(tempfile.mkdtemp())
    answers: list[CarriedOut] = []
    for number in options.cases:
        answers += case(number, folder / f"case{number}", options.rounds, options.steps)
    sizes = [100 * abs(one.predicted / one.observed - 1) for one in answers]
    show("assignment_error", median(sizes), mean=round(fmean(sizes), 2), worst=round(max(sizes), 2), tried=len(sizes))
    if options.write_model_errors:
        write_carried_out("assignments", "python -m benchmarks.assignments", answers)


def case(number: int, folder: Path, rounds: int, steps: int) -> list[CarriedOut]:
    """Carry out one case; its predictions, and what was measured, ms."""
    folder.mkdir(parents=True, exist_ok=True)
    cpu, rate = CASES[number]
    setting = {"case": number, "cpu": cpu, "rate": rate}
    run, predictions = folder / "run", folder / "predictions.json"
    if not predictions.exists():
        job(cpu, rate, folder / "record.json", ["--telemetry", str(run), "--steps", "20"])
        predicted, advised, low, high = predict(run)
        listed = [[ests, ms] for ests, ms in predicted.items()]
        predictions.write_text(json.dumps({"advised": advised, "low": low, "high": high, "ms": listed}))
    written = json.loads(predictions.read_text())
    schedule = [ests for ests, _ in written["ms"]]
    random.Random(number).shuffle(schedule)
    again = ["--schedule", json.dumps(schedule), "--steps", str(steps), "--rounds", str(rounds)]
    measured = job(cpu, rate, folder / "measured.json", again)
    taken = {frozen(ests): fmean(ms) for ests, ms in zip(measured["schedule"], measured["step_ms"], strict=True)}
    errors = []
    for ests, ms in written["ms"]:
        after = taken[frozen(ests)]
        errors.append(ms / after - 1)
        told_ms = {"predicted_ms": round(ms, 1), "measured_ms": round(after, 1)}
        show("assignment", 100 * errors[-1], ests=[len(one) for one in ests], **told_ms, **setting)
    best, advised = min(taken.values()), taken[frozen(written["advised"])]
    even = taken[Assignment.even(N_EST, len(cpu)).ests]
    show(
        "advised_assignment",
        100 * (advised / best - 1),
        ests=[len(one) for one in written["advised"]],
        gain_over_even_pct=round(100 * (1 - advised / even), 2),
        median_error_pct=round(100 * median(map(abs, errors)), 2),
        worst_error_pct=round(100 * max(map(abs, errors)), 2),
        **setting,
    )
    return [CarriedOut("cpu", "assign", even, ms, taken[frozen(ests)]) for ests, ms in written["ms"]]


def predict(run: Path) -> tuple[dict[Ests, float], Ests, float, float]:
    """Step time (ms) of each assignment to try, the advised one, and its interval."""
    replayed = Replayed.of(esprof.load(str(run)))
    advice = advise_ests(replayed)
    tried = dict.fromkeys([advice.decision.ests, est_load_of(replayed).assignment.ests])
    counts = [c for c in itertools.product(range(1, N_EST), repeat=len(replayed.run.ranks)) if sum(c) == N_EST]
    random.Random(0).shuffle(counts)
    for one in counts:
        if len(tried) < TRIED:
            tried.setdefault(Assignment.of(in_ranges(one)).ests)
    est_load = est_load_of(replayed)
    prices = {ests: replayed.pricer.price_edited(est_load.moved(Assignment(ests))) for ests in tried}
    times = {ests: float(price.step_ns.mean()) / 1e6 for ests, price in prices.items()}
    return times, advice.decision.ests, advice.low_us / 1e3, advice.high_us / 1e3


def est_load_of(replayed: Replayed) -> EstLoad:
    return EstLoad.of(replayed.run, replayed.pricer.dfg, replayed.pricer.steps)


def job(cpu: tuple[float, ...], rate: tuple[str | None, ...], answer: Path, arguments: list[str]) -> dict[str, list]:
    """Run the job on a bed of its own, and give back what its rank 0 prints."""
    with hosts(cpu=cpu, rate=rate) as bed, answer.open("wb") as out:
        codes = bed.torchrun(
            ["-m", "benchmarks.jobs.elastic", "--n-est", str(N_EST), *MODEL, *arguments], stdout=out
        ).wait(1_200)
    assert not any(codes), codes
    found: dict[str, list] = json.loads(answer.read_text().splitlines()[-1])
    return found


def frozen(ests: list[list[int]]) -> Ests:
    return tuple(map(tuple, ests))


def show(name: str, value: float, **context: object) -> None:
    print(json.dumps({"name": name, "value": round(value, 2), "unit": "%", "context": context}), flush=True)


if __name__ == "__main__":
    main()
