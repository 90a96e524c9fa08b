"""Accuracy of replay: one JSON line a figure, and with --write the tables of docs/results/accuracy.md.

    python -m benchmarks.accuracy RUN… [--traces FOLDER] [--executed FIGURES] [--write docs/results/accuracy.md]
    python -m benchmarks.accuracy --write-model-errors WITHOUT WITH

RUN is a Run directory or a set of Kineto traces. FOLDER holds the public traces with known counterfactuals, under the names
in the page. FIGURES is what `benchmarks.executed` printed. The figures depend
on the recordings alone, not on the machine that replays them.
"""

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median

import numpy as np

import esprof
from benchmarks.figures import show, table
from benchmarks.model_errors import CarriedOut, write_carried_out
from benchmarks.sections import write_sections
from esprof.core.types import NS_PER_US
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.engine.timeline import critical_path, replay, strict
from esprof.replay.ranks.blame import Blame
from esprof.replay.replayed import Replayed
from esprof.replay.rules import ALL_RULES, Rules
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.scenario import Declined
from esprof.replay.whatif.terms.straggler import fix_stragglers


@dataclass(frozen=True)
class Counterfactual:
    """A change of a public trace whose effect is known to lie within bounds."""

    trace: str
    what: str
    figures: Callable[[Replayed], Sequence[float]]
    least: float
    most: float
    unit: str


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="*")
    parser.add_argument("--traces", type=Path)
    parser.add_argument("--executed", type=Path)
    parser.add_argument("--write", type=Path)
    parser.add_argument(
        "--write-model-errors",
        nargs=2,
        metavar=("WITHOUT", "WITH"),
        help="write for intervals what `data=0` of a trace is off by, given one of the same job with loader workers",
    )
    options = parser.parse_args()
    if options.write_model_errors:
        replays = [Replayed.of(esprof.load(source)) for source in options.write_model_errors]
        write_carried_out("public-traces", PAIR_COMMAND, [loader_pair(*replays)])
    if not options.runs:
        return
    replayed = {"/".join(Path(source).parts[-2:]): Replayed.of(esprof.load(source)) for source in options.runs}
    sections = {"unseen": table(UNSEEN, unseen_rows(replayed)), "self-replay": table(SELF, self_replay_rows(replayed))}
    if options.traces:
        sections["counterfactuals"] = table(KNOWN, counterfactual_rows(options.traces))
    if options.executed:
        sections["executed"] = table(EXECUTED, executed_rows(options.executed))
    if options.write:
        write_sections(options.write, sections)
        print(f"Wrote {options.write}", file=sys.stderr)


SELF = ("all steps", ">kept %", ">strict %", ">explained %")
UNSEEN = ("run", ">steps", ">mean error %", ">of the mean %", ">worst %", ">naive %", ">naive, mean %", ">spread %")
KNOWN = ("trace", "what", ">bounds", ">all rules", ">rendezvous off", ">sync inference off", ">stream waits off")
EXECUTED = ("job", "change", "what-if", ">before ms", ">predicted ms", ">after ms", ">error %", ">noise %")
OFF = (ALL_RULES, Rules(rendezvous=False), Rules(syncs_by_time=False), Rules(stream_waits=False))


def self_replay_rows(runs: dict[str, Replayed]) -> Iterator[tuple[str, ...]]:
    """Mean, median, 90th percentile and worst of all."""
    columns: tuple[list[float], ...] = ([], [], [])
    for name, one in runs.items():
        kept, dropped = (100 * (steps / one.measured_ns - 1) for steps in (one.timeline.step_ns(), strict_ns(one)))
        for at in one.pricer.steady_at:
            explained = one.explained_of(critical_path(one.timeline, int(at), int(at)))
            for column, value in zip(columns, (abs(kept[at]), abs(dropped[at]), explained), strict=True):
                column.append(float(value))
            show(
                "self_replay_strict",
                float(dropped[at]),
                "%",
                {"run": name, "step": one.steps.all[at], "explained": explained},
            )
    for label, of in (("mean", mean), ("median", median), ("p90", p90), ("worst", max)):
        # Of what is explained the least is the worst.
        low = {"p90": lambda values: float(np.quantile(values, 0.1)), "worst": min}.get(label, of)
        values = (of(columns[0]), of(columns[1]), low(columns[2]))
        yield f"**{label}**", f"{values[0]:.3f}", f"{values[1]:.3f}", f"{values[2]:.1f}"


PAIR_COMMAND = "python -m benchmarks.accuracy --write-model-errors WITHOUT WITH"


def loader_pair(without: Replayed, with_workers: Replayed) -> CarriedOut:
    """What `data=0` says of a job without loader workers, and what the same job takes with them; means of steps, us."""
    (answer,) = without.pricer.answers(["data=0"])
    if answer.predicted_us is None:
        raise SystemExit(f"data=0 was not answered: {answer.reason}")
    before, observed = (float(one.pricer.measured_ns.mean()) / NS_PER_US for one in (without, with_workers))
    return CarriedOut("gpu", "data", before, answer.predicted_us, observed)


def strict_ns(one: Replayed) -> np.ndarray:
    """Duration of each step replayed without residuals but contention, ns."""
    return replay(strict(one.built.dfg)).step_ns()


def unseen_rows(runs: dict[str, Replayed]) -> Iterator[tuple[str, ...]]:
    """A row for each run that has two steady steps or more."""
    for name, one in runs.items():
        held = one.pricer.error.prediction.held_out
        if not held:
            continue
        measured = {step: ns / 1e3 for step, ns in zip(one.steps.steady, one.pricer.measured_ns, strict=True)}
        naive = median(measured[step] for step in one.pricer.error.prediction.fit_steps)
        actual = np.array([step.measured_us for step in held])
        errors = [abs(step.error_pct) for step in held]
        of_mean = 100 * (mean(step.predicted_us for step in held) / actual.mean() - 1)
        naive_errors = np.abs(100 * (naive / actual - 1))
        spread = 100 * float(np.quantile(actual, 0.9) - np.quantile(actual, 0.1)) / float(np.median(actual))
        naive_of_mean = 100 * (naive / actual.mean() - 1)
        show("unseen_error", mean(errors), "%", {"run": name, "naive": float(naive_errors.mean()), "of_mean": of_mean})
        figures = (mean(errors), of_mean, max(errors), naive_errors.mean(), naive_of_mean, spread)
        signs = ("", "+", "", "", "+", "")
        shown = (format(value, f"{sign}.1f") for value, sign in zip(figures, signs, strict=True))
        yield name, f"{len(measured) - len(held)} → {len(held)}", *shown


def sleep_gains(one: Replayed) -> list[float]:
    """Seconds that mending rank 2 takes off each step."""
    try:
        mended = replay(fix_stragglers(Blame(one.built.dfg, one.built.dfg.marks.steps), [2]).dfg).step_ns()
    except Declined:
        return [0.0]
    return ((one.timeline.step_ns() - mended) / 1e9).tolist()


def outlier_error(one: Replayed) -> list[float]:
    """Per cent by which each step left out differs, without its allocator calls, from the mean of the steady steps."""
    dfg = one.built.dfg
    mended = replay(edits.shorten(dfg, dfg.of(Cls.ALLOCATOR), 0)).step_ns()
    return [100 * (mended[one.steps.all.index(step)] / one.pricer.step_ns - 1) for step in one.steps.left_out]


def slowed_steps(one: Replayed) -> list[float]:
    """Durations of the steady steps but the first, ms, with GPU streams at half the speed."""
    dfg = one.built.dfg
    return (one.pricer.price_edited(edits.scale(dfg, dfg.on(LaneKind.STREAM), 0.5)).step_ns[1:] / 1e6).tolist()


def counterfactual_rows(folder: Path) -> Iterator[tuple[str, ...]]:
    """A row for each change whose effect is known: its figures by all rules, and without one kind of rule each."""
    for case in counterfactuals():
        (source,) = folder.glob(case.trace)
        run = esprof.load(source)
        cells = []
        for rules in OFF:
            values = case.figures(Replayed.of(run, rules=rules))
            low, high = min(values), max(values)
            held = case.least <= low and high <= case.most
            show(
                "counterfactual", low, case.unit, {"trace": case.trace, "most": high, "rules": str(rules), "held": held}
            )
            text = f"{low:.3g}" if f"{low:.3g}" == f"{high:.3g}" else f"{low:.3g} … {high:.3g}"
            cells.append(text if held else f"**{text}**")
        bounds = (
            f"{case.least:g} … {case.most:g} {case.unit}" if case.most < np.inf else f"≥ {case.least:g} {case.unit}"
        )
        yield case.trace.split("*")[0], case.what, bounds, *cells


def counterfactuals() -> Iterator[Counterfactual]:
    for name in ("long_a2a_1", "sleep_after_backward"):
        yield Counterfactual(f"torchrec-4xv100/{name}", "sleep", sleep_gains, 0.95, 1.05, "s")
    for name in ("long_a2a_3", "long_a2a_5", "long_a2a_5_qcomm"):
        yield Counterfactual(f"torchrec-4xv100/{name}", "allocator", outlier_error, -12, 12, "%")
    yield Counterfactual("hta/rank-0.Apr_03*", "slower GPU", slowed_steps, 187, np.inf, "ms")


def executed_rows(file: Path) -> Iterator[tuple[str, ...]]:
    """Rows of the JSON lines of `benchmarks.executed`, and their median and worst."""
    figures = [json.loads(line) for line in file.read_text().splitlines() if line.startswith("{")]
    cases = [figure for figure in figures if figure["name"] == "executed_what_if_error"]
    for figure in cases:
        context = figure["context"]
        times = (", ".join(f"{ms:.1f}" for ms in context["ms"][key]) for key in ("before", "predicted", "after"))
        noise = ", ".join(str(context["noise_pct"][key]) for key in ("before", "after"))
        what_if = f"`{context['what_if']}`" if "=" in context["what_if"] else context["what_if"]
        yield context["job"], context["change"], what_if, *times, f"{figure['value']:+.1f}", noise
    errors = [abs(figure["value"]) for figure in cases]
    for label, of in (("mean", mean), ("median", median), ("p90", p90), ("worst", max)):
        yield f"**{label}**", f"{len(errors)} changes", "", "", "", "", f"{of(errors):.1f}", ""


def p90(values: Sequence[float]) -> float:
    return float(np.quantile(values, 0.9))


if __name__ == "__main__":
    main()
