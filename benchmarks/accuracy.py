"""How well replay reproduces and predicts recorded steps: one JSON line a figure, and with --write the page.

    python -m benchmarks.accuracy RUN… [--write docs/accuracy.md] [--executed FIGURES]

RUN is a Run directory or a set of Kineto traces. The figures depend on the recording alone, not on the machine that
replays it. FIGURES is what `benchmarks.executed` printed: the page then holds it too.
"""

import argparse
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

import esprof
from esprof.replay import answer_run
from esprof.replay.answer import ReplayAnswer

HEADER = """# Accuracy

Written by `python -m benchmarks.accuracy RUN… --write docs/accuracy.md`.

*kept*: worst error of a steady step replayed with residuals kept; by construction near 0, and proof of nothing alone.
*strict*: error of all steady steps when residuals are dropped. *explained*: share of the critical path that is neither
residual nor contention. *unseen*: error of steps predicted from durations fitted on the other half of the steady steps,
mean and worst, beside the error of the *naive* guess, the median of the fitted steps. An unseen step of a job that keeps a
backlog on its GPUs depends on the step before it: there, durations alone cannot tell.

The `gpt-2xgloo` rows are the demo's job on two ranks that shared a machine of 2 cores, recorded with
`esprof record --steps 24`: even, with a slow loader on one rank, and with a slow rank. The others are public traces of other
projects: Megatron from astra-sim (MIT), DLRM from torchrec (BSD-3), ResNet50 from kineto (BSD-3), and HTA's test data (MIT).

| run | device | ranks | steady steps | mean step ms | kept % | strict % | explained % | unseen % | naive % |
|---|---|--:|--:|--:|--:|--:|--:|--:|--:|
"""

EXECUTED = """
## What-ifs whose answer is known

Figures of `python -m benchmarks.executed`: the demo's job with a planted fault, what replay says it would take without, and
what it took without. Two ranks on a machine of 2 cores, runs interleaved; the error is that of the medians.

| case | what-if | with the fault, ms | predicted, ms | made true, ms | error % |
|---|---|---|---|---|--:|
"""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", nargs="+")
    parser.add_argument("--write", type=Path)
    parser.add_argument("--executed", type=Path)
    options = parser.parse_args()
    rows = []
    for source in options.runs:
        run = esprof.load(source)
        answer = answer_run(run)
        name = "/".join(Path(source).parts[-2:]) if run.path else source
        for figure in figures(name, answer):
            print(json.dumps(figure), flush=True)
        rows.append(row(name, run.meta.ranks[0].device or "?", answer))
    if options.write:
        executed = EXECUTED + "\n".join(executed_rows(options.executed)) + "\n" if options.executed else ""
        options.write.write_text(HEADER + "\n".join(rows) + "\n" + executed)
        print(f"Wrote {options.write}", file=sys.stderr)


def unseen_errors(answer: ReplayAnswer) -> tuple[list[float], list[float]]:
    """Absolute errors in per cent of the held-out steps: predicted by replay, and by the median of the fitted steps."""
    measured = {step.step: step.measured_us for step in answer.steps}
    fitted = [measured[step] for step in answer.prediction.fit_steps]
    held = answer.prediction.held_out
    naive = [100 * abs(median(fitted) / step.measured_us - 1) for step in held]
    return [abs(step.error_pct) for step in held], naive


def executed_rows(file: Path) -> Iterator[str]:
    """Rows of the second table, from the JSON lines of `benchmarks.executed`."""
    found = [json.loads(line) for line in file.read_text().splitlines()]
    runs = {f["context"]["case"]: f["context"]["ms"] for f in found if f["name"] == "step_time"}
    for figure in found:
        if figure["name"] == "what_if_error":
            context = figure["context"]
            times = [", ".join(map(str, ms)) for ms in (runs[context["case"]], context["ms"], runs["even"])]
            yield f"| {context['case']} | `{context['what_if']}` | {' | '.join(times)} | {figure['value']:+.1f} |"


def figures(name: str, answer: ReplayAnswer) -> Iterator[dict[str, Any]]:
    unseen, naive = unseen_errors(answer)
    context = {"run": name, "world_size": answer.world_size, "steps": len(answer.steps)}
    values = {
        "replay_error_kept_worst": max(abs(step.error_pct) for step in answer.steps),
        "replay_error_strict": answer.strict_error_pct,
        "explained": answer.explained_pct,
        "unseen_error_mean": mean(unseen) if unseen else None,
        "unseen_error_worst": max(unseen, default=None),
        "naive_error_mean": mean(naive) if naive else None,
        "naive_error_worst": max(naive, default=None),
    }
    for figure, value in values.items():
        yield {"name": figure, "value": value, "unit": "%", "context": context}


def row(name: str, device: str, answer: ReplayAnswer) -> str:
    unseen, naive = unseen_errors(answer)
    kept = max(abs(step.error_pct) for step in answer.steps)
    pair = [f"{mean(errors):.1f}, {max(errors):.1f}" if errors else "–" for errors in (unseen, naive)]
    cells = [
        name, device, str(answer.world_size), str(len(answer.steps)), f"{answer.step_us / 1e3:.1f}", f"{kept:.3f}",
        f"{answer.strict_error_pct:+.3f}", f"{answer.explained_pct:.1f}", *pair,
    ]  # fmt: skip
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
