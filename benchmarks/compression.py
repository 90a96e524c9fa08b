"""How good advice on gradient compression is, and how fast it is found.

    python -m benchmarks.compression [--instances FILE …]
        [--executed] [--sharded] [--jobs mlp gpt] [--rates 100mbit 1gbit none] [--repeats 2] [--keep FOLDER]
        [--write-model-errors]

Prints JSON lines. How long the search takes, and how far heuristics are from the optimum over a fixed corpus; with
--instances, the same of published ones. With --executed (needs root): jobs on two hosts of the test bed are recorded and
probed; what a step would take with one codec for all, and with the plan, is written down; then the job is recorded with
bf16, with the best single codec, with the plan, with nothing sent (torch's noop hook: a bound, and no part of the errors)
and as it is, interleaved. With --sharded the jobs are of FSDP2: bf16 (the plan, where there is one) and as it is.
"""

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

import numpy as np

from benchmarks.figures import show
from benchmarks.model_errors import CarriedOut, write_carried_out
from benchmarks.settings import Setting, noise_pct, record, slug
from esprof.analyzers import recommend
from esprof.analyzers.advisors.compression.answer import CompressionAdvice
from esprof.analyzers.advisors.compression.instance import solve
from esprof.analyzers.advisors.compression.search import algorithm_1, heuristic, search
from esprof.analyzers.advisors.compression.timeline import BucketTimeline, Costs
from esprof.analyzers.advisors.recommend import Wanted
from esprof.core.errors import EsprofError
from esprof.core.plan import write_plan
from esprof.replay.replayed import Replayed

JOBS = {"mlp": (), "gpt": ("--batch", "32"), "mixer": ()}
CPU = (0.8, 0.8)
STEPS = 40
CORPUS = 300
SHARDED = ("--sharded",)
NOOP = "noop"
NOTHING = "none"
"""The job as it is."""
LOSSY = 0.1
"""More than by default: with more codecs to choose from there is more to predict."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--instances", type=Path, nargs="+", default=[], metavar="FILE", help="with costs beside them")
    parser.add_argument("--executed", action="store_true")
    parser.add_argument("--sharded", action="store_true", help="execute jobs of FSDP2, not DDP")
    parser.add_argument("--jobs", nargs="+", default=["mlp", "gpt"], choices=JOBS)
    parser.add_argument("--rates", nargs="+", default=["100mbit", "1gbit", "none"])
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--probe", type=float, default=60)
    parser.add_argument("--keep", type=Path, help="folder for the recordings; those already there are not made again")
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    options = parser.parse_args()
    if not options.sharded:
        searches()
        heuristics()
        instances(options.instances)
    if not options.executed:
        return
    answers: list[tuple[str, CarriedOut]] = []
    with tempfile.TemporaryDirectory() as folder:
        for job in options.jobs:
            for rate in options.rates:
                answers += executed(options, options.keep or Path(folder), job, rate)
    errors = [100 * abs(one.predicted / one.observed - 1) for _, one in answers]
    show("compression_error_median", median(errors), "%", {"cases": len(errors)})
    show("compression_error_mean", mean(errors), "%", {"cases": len(errors)})
    show("compression_error_worst", max(errors), "%", {"cases": len(errors)})
    if options.write_model_errors:
        compressed = (one for codec, one in answers if codec != NOTHING)
        write_carried_out("compression", "python -m benchmarks.compression --executed", compressed)


def searches() -> None:
    for buckets, by_host in ((30, False), (30, True), (400, False), (400, True)):
        timeline, sizes = drawn(buckets, np.random.default_rng(buckets), by_host=by_host)
        search(timeline, sizes)  # Compiles.
        took, gaps = [], []
        for seed in range(5):
            timeline, sizes = drawn(buckets, np.random.default_rng(seed), by_host=by_host)
            began = time.perf_counter()
            found = search(timeline, sizes)
            took.append(1e3 * (time.perf_counter() - began))
            gaps.append(100 * found.gap)
        context = {"buckets": buckets, "host": by_host, "worst_ms": max(took), "worst_gap_pct": max(gaps)}
        show("compression_search", median(took), "ms", context)


def heuristics() -> None:
    """Instances small enough for the exact search, with every kind of cost."""
    for name, of in (("algorithm_1", algorithm_1), ("heuristic", heuristic)):
        gaps = []
        for seed in range(CORPUS):
            random = np.random.default_rng(seed)
            timeline, sizes = drawn(int(random.integers(1, 13)), random, by_host=seed % 2 == 1)
            best = search(timeline, sizes, max_partial=1_000_000)
            if best.kind == "exact":
                gaps.append(100 * (timeline.end_ns(of(timeline, sizes)) / best.end_ns - 1))
        quantiles = {f"p{part}": float(np.percentile(gaps, part)) for part in (50, 90, 99)}
        show(f"compression_gap_{name}", max(gaps), "%", quantiles | {"exact": len(gaps), "of": CORPUS})


def instances(files: list[Path]) -> None:
    """With all gaps between tensors, and as the released program has them."""
    for file in files:
        for as_shipped in (False, True):
            solve(file, as_shipped=as_shipped)  # Compiles.
            began = time.perf_counter()
            found = solve(file, as_shipped=as_shipped)
            took = 1e3 * (time.perf_counter() - began)
            context = {"as_shipped": as_shipped, "value_us": found.value_us, "gap_pct": found.gap_pct}
            show(f"compression_instance_{file.stem}", took, "ms", context | {"gap_kind": found.gap_kind})


def drawn(buckets: int, random: np.random.Generator, *, by_host: bool) -> tuple[BucketTimeline, np.ndarray]:
    """Buckets of unlike sizes, and six options, from 32-bit floats to sparse ones, some of them encoded by the host."""
    sizes = random.lognormal(2, 1.5, buckets)
    link, stall = np.array([1.0, 0.5, 0.1, 0.05, 0.1, 0.05]), np.array([0.0, 0.05, 0.2, 0.4, 0.5, 0.6])
    host = np.zeros(6)
    if by_host:
        stall[4:], host[4:] = 0.02, (0.6, 1.0)
    ready = np.cumsum(random.exponential(sizes.mean() / 3, buckets))
    columns = [np.outer(sizes, what) * random.uniform(0.8, 1.2, (buckets, 6)) for what in (stall, host, link)]
    nothing = np.zeros((buckets, 6))
    return BucketTimeline(Costs(ready, *columns, nothing, float(ready[-1]), nothing, np.inf)), sizes


def executed(options: argparse.Namespace, folder: Path, job: str, rate: str) -> list[tuple[str, CarriedOut]]:
    """Each codec, and the step predicted with it and measured, us."""
    argv = ("-m", f"benchmarks.jobs.{job}", "--files", str(folder / job), "--steps", str(STEPS), *JOBS[job])
    base = Setting((*argv, *(SHARDED if options.sharded else ("--bucket-mb", "1"))), CPU, (rate, rate))
    name = f"{job} sharded" if options.sharded else job
    run = record(base, folder / slug(f"{name} {rate} probed"), options.probe)
    began = time.perf_counter()
    context = {"job": name, "rate": rate}
    try:
        advice = recommend(run, "compression", Wanted(max_vnmse=LOSSY))
    except EsprofError as declined:
        print(f"{name} at {rate}: {declined}", file=sys.stderr)
        return []
    show("compression_advice", 1e3 * (time.perf_counter() - began), "ms", context | {"gain_pct": advice.gain_pct})
    predicted = {NOTHING: advice.baselines["now"], **with_codecs(advice)}
    if not options.sharded:
        predicted[NOOP] = advice.baselines["no exchange"]
    settings = {codec: with_choice(base, codec) for codec in predicted}
    if advice.plan is not None:
        plan = folder / f"{slug(f'{name} {rate} plan')}.json"
        write_plan(plan, advice.plan)
        buckets = (
            base if advice.bucket_mb is None else replace(base, argv=(*argv, "--bucket-mb", str(advice.bucket_mb)))
        )
        predicted["plan"], settings["plan"] = advice.value, with_choice(buckets, str(plan))
    show(
        "compression_predicted",
        advice.gain_pct,
        "%",
        context | {"step_us": predicted, "advised": advice.plan is not None},
    )
    measured: dict[str, list[float]] = {name: [] for name in predicted}
    for repeat in range(options.repeats):
        for codec, setting in settings.items():
            recorded = record(setting, folder / slug(f"{name} {rate} {codec} {repeat}"))
            measured[codec].append(Replayed.of(recorded).pricer.step_ns / 1e3)
    answers = []
    for codec, took in measured.items():
        error = 100 * (predicted[codec] / mean(took) - 1)
        more = {"predicted_us": predicted[codec], "measured_us": took, "noise_pct": noise_pct(took)}
        show("compression_executed", error, "%", context | {"codec": codec} | more)
        if codec != NOOP:
            answers.append((codec, CarriedOut("cpu", "compress", predicted[NOTHING], predicted[codec], mean(took))))
    return answers


def with_codecs(advice: CompressionAdvice) -> dict[str, float]:
    """bf16, and the best single codec."""
    others = ("now", "zero cost", "no exchange")
    known = {name: step for name, step in advice.baselines.items() if name not in others}
    best = min(known, key=lambda name: known[name])
    return {name: known[name] for name in dict.fromkeys(("bf16", best)) if name in known}


def with_choice(base: Setting, name: str) -> Setting:
    return base if name == NOTHING else replace(base, argv=(*base.argv, "--compress", name))


if __name__ == "__main__":
    sys.exit(main())
