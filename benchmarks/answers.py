"""Every answer of `replay`, `diagnose`, `ops`, `recommend` and `check` on a set of runs, written down; and two such files
compared.

A change that is not meant to change answers proves it:

    python -m benchmarks.answers write before.json ../shared/traces my-run …     # on the code before
    python -m benchmarks.answers write after.json ../shared/traces my-run …      # and after
    python -m benchmarks.answers compare before.json after.json                  # exit 3 where they differ
    python -m benchmarks.answers compare before.json after.json --but title --but evidence

It goes by the command line alone, of the checkout that it is run in, so that it outlives any change inside. Of a folder that
is no run itself, each entry that is one is taken. What depends on the hour or the machine, `timing_s`, is left out. A
comparison prints what differs, then a table of how many values were compared; fields that are meant to differ are named
with `--but`, and not compared.
"""

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

SCENARIOS = (
    "gpu=2x", "gpu=0.5x", "cpu=2x", "cpu=0.5x", "network=2x", "network=0.5x", "rank0.gpu=1.5x", "rank1.cpu=2x",
    "kernel[gemm|addmm]=2x", "collective[.*]=2x", "straggler=fix", "overlap=perfect", "data=0", "bucket_mb=4",
    "gpu=2x,cpu=2x,network=2x", "data=0,straggler=fix", "storage=2x", "loader.workers=4", "compress=powersgd:4",
)  # fmt: skip
ESPROF = [sys.executable, "-m", "esprof"]
LEFT_OUT = {"timing_s"}
VERBS = ("replay", "diagnose", "ops", "recommend", "compress", "check")
ABSENT = "(absent)"


def inputs(sources: list[Path]) -> Iterator[tuple[str, Path]]:
    """(name, path) of each run: what lies under a folder of traces by its path within it."""
    for source in sources:
        if source.is_file() or (source / "run.json").exists():
            yield source.name, source
            continue
        for folder in sorted({path.parent for path in source.rglob("*.json*")}):
            files = sorted(folder.glob("*.json*"))
            several = all("rank" in file.name for file in files) and len(files) > 1
            for run in [folder] if several else files:
                yield str(run.relative_to(source)), run


def answers(path: Path) -> dict[str, Any]:
    what_ifs = [word for spec in SCENARIOS for word in ("--what-if", spec)]
    with tempfile.TemporaryDirectory() as folder:
        baseline = Path(folder) / "baseline.json"
        saved = _answer(["check", str(path), "--save-baseline", str(baseline)])
        check = _answer(["check", str(path), "--baseline", str(baseline), "--json"])
    return {
        "replay": _answer(["replay", str(path), "--json", *what_ifs, "--max-error", "100"]),
        "diagnose": _answer(["diagnose", str(path), "--json"]),
        "ops": _answer(["ops", str(path), "--json"]),
        "recommend": _answer(["recommend", str(path), "--json"]),
        "compress": _answer(["recommend", str(path), "--only", "compression", "--json"]),
        "check": check | {"saved": saved["exit"]},
    }


def _answer(arguments: list[str]) -> dict[str, Any]:
    done = subprocess.run([*ESPROF, *arguments], capture_output=True, text=True, check=False)
    try:
        answer = json.loads(done.stdout)
    except json.JSONDecodeError:
        answer = done.stdout
    if isinstance(answer, dict):
        answer = {key: value for key, value in answer.items() if key not in LEFT_OUT}
    return {"exit": done.returncode, "answer": answer}


def values(answers: Any, left_out: Collection[str], where: str = "") -> Iterator[tuple[str, Any]]:
    """(place, value) of each number, text or truth value in `answers`, without the fields `left_out`."""
    if isinstance(answers, dict):
        for key, value in answers.items():
            if key not in left_out:
                yield from values(value, left_out, f"{where}/{key}")
    elif isinstance(answers, list):
        for place, value in enumerate(answers):
            yield from values(value, left_out, f"{where}/{place}")
    else:
        yield where, answers


def compare(before: dict[str, Any], after: dict[str, Any], left_out: Collection[str]) -> int:
    """Print what differs and the table. Returns how many values differ, or are on one side alone."""
    rows, changed = [], 0
    for run in [*before, *(run for run in after if run not in before)]:
        counts = []
        for verb in VERBS:
            old, new = (dict(values(side.get(run, {}).get(verb), left_out)) for side in (before, after))
            places = [place for place in old | new if old.get(place, ABSENT) != new.get(place, ABSENT)]
            for place in places:
                print(f"{run}: {verb}{place}: {old.get(place, ABSENT)!r} -> {new.get(place, ABSENT)!r}")
            counts += [len(old | new), len(places)]
            changed += len(places)
        rows.append((run, *counts))
    print("| run |" + "".join(f" {verb}: values | differ |" for verb in VERBS))
    print("|---|" + "--:|--:|" * len(VERBS))
    for row in rows:
        print("| " + " | ".join(map(str, row)) + " |")
    return changed


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(dest="verb", required=True)
    write = verbs.add_parser("write")
    write.add_argument("out", type=Path)
    write.add_argument("runs", type=Path, nargs="+")
    against = verbs.add_parser("compare")
    against.add_argument("before", type=Path)
    against.add_argument("after", type=Path)
    against.add_argument("--but", action="append", default=[], metavar="FIELD", help="not compared; repeatable")
    asked = parser.parse_args()
    if asked.verb == "write":
        found = {name: answers(path) for name, path in inputs(asked.runs)}
        asked.out.write_text(json.dumps(found, indent=1))
        return 0
    before, after = (json.loads(path.read_text()) for path in (asked.before, asked.after))
    changed = compare(before, after, asked.but)
    context = {"runs": len(before), "not_compared": asked.but}
    print(json.dumps({"name": "answers_changed", "value": changed, "unit": "values", "context": context}))
    return 3 if changed else 0


if __name__ == "__main__":
    sys.exit(main())
