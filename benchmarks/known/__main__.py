"""How far what-ifs and diagnoses are from a truth that is known: jobs made up, run exactly, recorded as torch would.

    python -m benchmarks.known [--programs 300] [--seed N] [--class NAME] [--steps N] [--without RULE]
    python -m benchmarks.known --seed 1 --programs 180 --write-model-errors
    python -m benchmarks.known --seed 71001 --programs 60 --planted

The figures depend on the programs alone, not on the machine. One JSON line a figure comes after the tables.
"""

import argparse
import json
import os
import sys
from collections.abc import Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict, fields, replace
from functools import partial
from pathlib import Path

from benchmarks.known.jobs import SHAPES, job
from benchmarks.known.judge import Judged, judge
from benchmarks.known.tables import model_errors, report
from benchmarks.model_errors import of_answers, write
from esprof.replay.rules import ALL_RULES, Rules


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--programs", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0, help="of the first program; the others follow")
    parser.add_argument("--class", dest="shape", choices=SHAPES, help="jobs of this class only")
    parser.add_argument("--steps", type=int, help="that a window has, else four to eight")
    parser.add_argument("--planted", action="store_true", help="programs with a planted loss, and findings on it, only")
    parser.add_argument("--max-error", type=float, default=10.0, help="as of `esprof replay`")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="programs that are judged side by side")
    names = [rule.name for rule in fields(Rules)]
    parser.add_argument("--without", choices=names, metavar="RULE", help=f"build graphs without it: {', '.join(names)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="every answer, one JSON line each")
    parser.add_argument("--write-model-errors", action="store_true", help="write what gains were off by for intervals")
    parser.add_argument("--source", help="what the file calls them, else the class of job or `known`")
    asked = parser.parse_args()
    shapes = [asked.shape] if asked.shape else [name for name, one in SHAPES.items() if one.is_common]
    seeds = range(asked.seed, asked.seed + asked.programs)
    of_seeds = {seed: shapes[seed % len(shapes)] for seed in seeds}
    if asked.planted:
        of_seeds = {seed: shape for seed, shape in of_seeds.items() if job(shape, seed).plant}
    rules = replace(ALL_RULES, **{asked.without: False}) if asked.without else ALL_RULES
    judged = []
    with ProcessPoolExecutor(asked.jobs) as pool:
        judge_one = partial(
            judge, max_error_pct=asked.max_error, rules=rules, steps=asked.steps, findings_only=asked.planted
        )
        for one in pool.map(judge_one, of_seeds.values(), of_seeds):
            judged.append(one)
            if sys.stderr.isatty():
                print(f"\r{len(judged)}/{len(of_seeds)}", end="", file=sys.stderr)
    if asked.json:
        asked.json.write_text("".join(f"{json.dumps(line, default=float)}\n" for line in lines(judged)))
    report(judged)
    if asked.write_model_errors:
        write_model_errors(judged, asked.shape, seeds, asked.source)
    return 0


def write_model_errors(judged: Iterable[Judged], shape: str | None, seeds: range, source: str | None = None) -> None:
    of = f" --class {shape}" if shape else ""
    command = f"python -m benchmarks.known{of} --seed {seeds[0]} --programs {len(seeds)}"
    command += f" --source {source}" if source else ""
    found = model_errors(verdict for one in judged for verdict in one.verdicts)
    shares = {key: of_answers(off) for key, off in found.items()}
    write(source or shape or "known", command, f"{seeds[0]} to {seeds[-1]}", shares)


def lines(judged: Iterable[Judged]) -> Iterator[dict[str, object]]:
    """All that was found about each program."""
    for one in judged:
        head = {"class": one.shape, "seed": one.seed}
        if one.said is None:
            yield head | {"failure": one.failure}
            continue
        errors = {"self": one.said.self_error_pct, "strict": one.said.strict_error_pct, "step": one.step_error_pct}
        yield head | {"errors_pct": errors, "warnings": one.said.warnings, "findings": one.said.named}
        for verdict in one.verdicts:
            off = {} if verdict.predicted is None else {"error_pct": verdict.error_pct, "holds": verdict.holds}
            yield head | asdict(verdict) | off
        if one.blame:
            yield head | {"blame": asdict(one.blame)}


if __name__ == "__main__":
    sys.exit(main())
