"""What-ifs that were carried out: what replay says a change gives, and what the job took once it was made.

    python -m benchmarks.executed [--repeats 2] [--only REGEX] [--keep FOLDER] [--jobs mlp gpt demo] [--probe SECONDS]
        [--write-model-errors]

Trains jobs, some bound by communication and some by computing, on two hosts of the test bed (needs root), and the
demo's job with a planted fault. A case is recorded as it is, what replay predicts is written down, and then it is
recorded with the change made, interleaved (A-B-A-B). Prints a JSON line a case, and the median and worst error of all.

`error` is that of the means over repeats. `noise` is how far the repeats of one setting lie apart: no prediction can be
better than that. What replay predicts is a step under the recorder, so the truth is recorded too.

With --probe the recordings that predictions are made from are probed as well (`esprof record --probe`), and all is predicted
twice, from the same recordings: with their probes, and without (`without` in the JSON lines).
"""

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, median

import numpy as np
import torch

from benchmarks.figures import show
from benchmarks.model_errors import CarriedOut, term_of, write_carried_out
from benchmarks.settings import ALL_STEPS, Setting, changed, noise_pct, record, slug
from esprof.recorder import demo_job
from esprof.replay.dfg import Dfg
from esprof.replay.replayed import Replayed
from esprof.replay.whatif.gradients.gloo_buckets import backward_passes
from esprof.replay.whatif.graph import edits
from esprof.reports.commands.demo import FAULT_SHARE

HALF = 0.5

_SHARDED = "--sharded"
JOBS = {
    "mlp": ("mlp",),
    "gpt": ("gpt", "--batch", "32"),
    "lstm": ("lstm",),
    "mixer": ("mixer",),
    "mlp-fsdp": ("mlp", _SHARDED),
    "gpt-fsdp": ("gpt", "--batch", "32", _SHARDED),
    "lstm-fsdp": ("lstm", _SHARDED),
    "mixer-fsdp": ("mixer", _SHARDED),
}
"""Jobs on the test bed, their modules and arguments. On `mlp` and `gpt` rules were developed, on the others none."""


LISTED = ("mlp", "gpt", "mixer")
"""Modules of jobs whose model has a list of modules."""


@dataclass(frozen=True)
class Case:
    """A change from one setting to another. `what_if` predicts its effect: a spec of terms, or an edit of the graph."""

    job: str
    name: str
    before: Setting
    after: Setting
    what_if: str | Callable[[Replayed], Dfg]

    @property
    def spec(self) -> str:
        return self.what_if if isinstance(self.what_if, str) else "graph edit"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument("--only", type=re.compile, default=re.compile(""), help="cases whose `JOB NAME` this matches")
    parser.add_argument("--keep", type=Path, help="folder for the recordings; those already there are not made again")
    parser.add_argument("--jobs", nargs="+", default=["mlp", "gpt", "demo"], choices=[*JOBS, "demo"])
    parser.add_argument("--probe", type=float, default=0, metavar="SECONDS")
    parser.add_argument(
        "--write-model-errors", action="store_true", help="write what answers were off by for intervals"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        known = [case for case in cases(Path(folder)) if case.job in options.jobs]
        chosen = [case for case in known if options.only.search(f"{case.job} {case.name}")]
        if not chosen:
            parser.error(f"no case matches {options.only.pattern!r}")
        runs = options.keep or Path(folder)
        measured = [
            (case, carry_out(case, runs, repeat, options.probe)) for repeat in range(options.repeats) for case in chosen
        ]
    errors: list[float] = []
    answers: list[CarriedOut] = []
    for case in chosen:
        figures = [figure for other, figure in measured if other is case]
        errors.append(abs(show_case(case, figures)))
        answers += carried_out(case, figures)
    show("executed_what_if_error_median", median(errors), "%", {"cases": len(errors)})
    show("executed_what_if_error_mean", mean(errors), "%", {"cases": len(errors)})
    show("executed_what_if_error_worst", max(errors), "%", {"cases": len(errors)})
    if options.write_model_errors:
        write_carried_out("executed", "python -m benchmarks.executed", answers)


def cases(folder: Path) -> Iterator[Case]:
    for job, (module, *arguments) in JOBS.items():
        steps = ("--steps", str(ALL_STEPS))
        argv = ("-m", f"benchmarks.jobs.{module}", "--files", str(folder / module), *steps, *arguments)
        base = Setting((*argv, "--bucket-mb", "1"))
        for factor in (0.25, 0.5, 2, 4):
            spec = f"network={factor:g}x"
            yield Case(job, f"link x{factor:g}", base, changed(base, spec), spec)
        for factor in (0.5, 2):
            spec = f"rank1.cpu={factor:g}x"
            yield Case(job, f"cpu of rank 1 x{factor:g}", base, changed(base, spec), spec)
        if _SHARDED in arguments:
            continue  # FSDP sends what a layer has, and no buckets.
        large = replace(base, argv=(*argv, "--bucket-mb", "25"))
        yield Case(job, "bucket 1 to 25 MB", base, large, "bucket_mb=25")
        yield Case(job, "bucket 25 to 1 MB", large, base, "bucket_mb=1")
        shared = replace(large, argv=(*large.argv, "--shared-update"))
        yield Case(job, "update shared by ranks", large, shared, "zero=1")
        for stage in (2, 3) if module in LISTED else ():
            sharded = replace(large, argv=(*large.argv, "--zero", str(stage)))
            yield Case(job, f"ZeRO, stage {stage}", large, sharded, f"zero={stage}")
        yield Case(job, "fp16 gradients", base, replace(base, argv=(*base.argv, "--fp16")), with_fp16)
    even = demo(folder, "even")
    yield Case("demo", "slow loader mended", demo(folder, "loader", slow_storage=[0, FAULT_SHARE]), even, "data=0")
    yield Case("demo", "slow rank mended", demo(folder, "rank", rest=[0, FAULT_SHARE]), even, "straggler=fix")


def demo(folder: Path, name: str, **faults: list[float]) -> Setting:
    config = folder / f"{name}.json"
    config.write_text(json.dumps({"slow_storage": [0, 0], "rest": [0, 0], "steps": ALL_STEPS} | faults))
    return Setting((demo_job.__file__, "--config", str(config)), cpu=(0.8, 0.8), rate=("none", "none"))


def with_fp16(replayed: Replayed) -> Dfg:
    """The graph with gradients cast to half precision and back.

    The link moves half the bytes, and the casts are made where DDP's hook makes them: before a bucket is sent, and after it
    came.
    """
    dfg = replayed.built.dfg
    there, back = cast_costs()
    dur = dfg.dur_ns.copy()
    for one in backward_passes(replayed.run, dfg):
        size = dfg.bytes[list(one.transfers)]
        dur[list(one.transfers)] = np.rint(HALF * dur[list(one.transfers)] + back * size)
        # The gradient that completes each bucket: the first at which the running sum of sizes reaches that of the buckets.
        closing = np.searchsorted(np.cumsum(one.sizes), np.cumsum(size))
        dur[[one.ready[gradient][0].node for gradient in closing]] += np.rint(there * size).astype(np.int64)
    return edits.replace(dfg, np.arange(dfg.nodes), dur)


def cast_costs(elements: int = 1 << 18, repeats: int = 50) -> tuple[float, float]:
    """ns per byte of gradient for what `fp16_compress_hook` does before sending, and after; medians on this machine."""
    torch.set_num_threads(1)
    gradient = torch.randn(elements)
    there, back = [], []
    for _ in range(repeats):
        started = time.perf_counter_ns()
        half = gradient.to(torch.float16).div_(2)
        sent = time.perf_counter_ns()
        gradient.copy_(half)
        there.append(sent - started)
        back.append(time.perf_counter_ns() - sent)
    size = elements * gradient.element_size()
    return median(there) / size, median(back) / size


def carry_out(case: Case, folder: Path, repeat: int, probe_s: float) -> dict[str, float]:
    """Record the case, predict, and only then record the change. Returns mean step times in ms by name.

    Cases of a repeat share the recordings of the settings that they share.
    """
    run = record(case.before, recording_of(case.before, folder, repeat), probe_s)
    before = Replayed.of(run, max_error_pct=100)
    figure = {"before": before.pricer.step_ns / 1e6, "predicted": predicted_ms(case, before)}
    if run.probes is not None:
        run.probes = None
        figure["without"] = predicted_ms(case, Replayed.of(run, max_error_pct=100))
    after = Replayed.of(record(case.after, recording_of(case.after, folder, repeat), probe_s), max_error_pct=100)
    figure["after"] = after.pricer.step_ns / 1e6
    print(f"{case.job} {case.name}: {json.dumps({k: round(v, 1) for k, v in figure.items()})}", file=sys.stderr)
    return figure


def recording_of(setting: Setting, folder: Path, repeat: int) -> Path:
    """Where the recording of this setting and repeat is kept."""
    words = [Path(word).name for word in setting.argv if word not in ("-m", "--files", "--steps", str(ALL_STEPS))]
    return folder / slug("-".join([*words, *map(str, setting.cpu), *setting.rate, str(repeat)]))


def predicted_ms(case: Case, before: Replayed) -> float:
    """The mean step that replay predicts."""
    if not isinstance(case.what_if, str):
        return float(before.pricer.price_edited(case.what_if(before)).step_ns.mean()) / 1e6
    (answer,) = before.pricer.answers([case.what_if])
    if answer.predicted_us is None:
        raise SystemExit(f"{case.job} {case.name}: {case.what_if} was not answered: {answer.reason}")
    return answer.predicted_us / 1e3


def carried_out(case: Case, figures: list[dict[str, float]]) -> Iterator[CarriedOut]:
    """The case by its means over repeats, ms, unless it is an edit of the graph, which is no term."""
    if isinstance(case.what_if, str):
        before, predicted, after = (mean(one[key] for one in figures) for key in ("before", "predicted", "after"))
        yield CarriedOut("cpu", term_of(case.what_if), before, predicted, after)


def show_case(case: Case, figures: list[dict[str, float]]) -> float:
    """Print a case; returns its error in per cent."""
    series = {key: [round(figure[key], 1) for figure in figures] for key in figures[0]}
    error = 100 * (mean(series["predicted"]) / mean(series["after"]) - 1)
    noise = {key: round(noise_pct(series[key]), 1) for key in ("before", "after")}
    context = {"job": case.job, "change": case.name, "what_if": case.spec, "ms": series, "noise_pct": noise}
    if "without" in series:
        context["error_without_probes_pct"] = round(100 * (mean(series["without"]) / mean(series["after"]) - 1), 2)
    show("executed_what_if_error", error, "%", context)
    return error


if __name__ == "__main__":
    main()
