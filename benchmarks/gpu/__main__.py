"""What only a GPU can show of esprof. One JSON line a figure, and a table at the end.

    python -m benchmarks.gpu --out DIR                          # on one GPU, 20 minutes at most
    python -m benchmarks.gpu --out DIR --only windows graphs    # some parts
    python -m benchmarks.gpu --out DIR --device cpu             # the same code without a GPU, in sizes that take seconds

Each part runs in a process of its own and within a time of its own. One that fails is a line with its error, and the rest
goes on. DIR gets figures.jsonl, summary.txt, the errors of each part in logs/, the recordings in runs/, and in traces/ small
traces of torch.profiler. docs/how-to/gpu.md says what each figure means. The exit code is 1 where a part failed.
"""

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.gpu import processes
from benchmarks.gpu.parts import LIMITS_S, TOTAL_S
from benchmarks.gpu.summary import summary

TAIL_LINES = 12
"""Of a failed part's errors, the last lines that are told."""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, metavar="DIR", help="folder for what is kept")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--only", nargs="+", choices=LIMITS_S, default=list(LIMITS_S), metavar="PART", help=", ".join(LIMITS_S)
    )
    options = parser.parse_args()
    out = options.out.resolve()
    if (out / "figures.jsonl").exists():
        parser.error(f"{out} has figures already: give another folder")
    machine = probe(options.device)
    if machine is None:
        parser.error(f"torch cannot use {options.device} here, as said above; --device cpu does without a GPU")
    (out / "logs").mkdir(parents=True, exist_ok=True)
    lines: list[dict[str, Any]] = []
    with (out / "figures.jsonl").open("x") as file:

        def note(line: dict[str, Any]) -> None:
            lines.append(line)
            for place in (sys.stdout, file):
                print(json.dumps(line | machine), file=place, flush=True)

        latest_s = time.monotonic() + TOTAL_S
        for part in options.only:
            limit_s = max(0.0, min(LIMITS_S[part], latest_s - time.monotonic()))
            carry_out(part, options.device, out, limit_s, note)
    (out / "summary.txt").write_text(summary(lines))
    print(summary(lines), end="")
    return 1 if any("error" in line for line in lines) else 0


def probe(device: str) -> dict[str, Any] | None:
    """Hardware and versions, found out by a process that is gone from the device afterwards; None where that failed."""
    command = [sys.executable, "-m", "benchmarks.gpu.hardware", device]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False, cwd=processes.HOME)
    return json.loads(done.stdout) if done.returncode == 0 else None


def carry_out(part: str, device: str, out: Path, limit_s: float, note: Callable[[dict[str, Any]], None]) -> None:
    """Run a part; note its figures, its error where it fails, and the time it took."""
    log, began_s = out / "logs" / f"{part}.txt", time.monotonic()
    command = [sys.executable, "-m", "benchmarks.gpu.part", part, device, str(out), str(limit_s)]

    def on_line(line: str) -> None:
        if line.startswith("{"):
            note({"part": part} | json.loads(line))
        else:  # What a library says.
            print(line, end="", file=sys.stderr)

    error = processes.run(command, limit_s, log, on_line)
    if error:
        said = [line for line in log.read_text(errors="replace").splitlines() if line.strip()]
        note({"part": part, "error": error, "tail": said[-TAIL_LINES:]})
    took = {"name": "part_s", "value": round(time.monotonic() - began_s, 1), "unit": "s"}
    note({"part": part} | took | {"spread": None, "context": {"limit_s": round(limit_s)}})


if __name__ == "__main__":
    sys.exit(main())
