"""The context of a benchmark: its device and folder, recording of jobs, and output of figures."""

import json
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, TypeVar

import esprof
from benchmarks.gpu.processes import HOME

T = TypeVar("T")

SKIP, WARMUP = 8, 2
"""Steps before a window: those in which the allocator and the device's clocks settle, and the profiler's own."""
TAIL = 2000
"""Characters of a failed command's errors that are shown."""


@dataclass(frozen=True)
class Kit:
    """`device` is `cuda` or `cpu`; `out` is the folder of recordings and traces; `limit_s` is the time limit."""

    device: str
    out: Path
    limit_s: float
    began_s: float = field(default_factory=time.monotonic)

    @property
    def left_s(self) -> float:
        return self.began_s + self.limit_s - time.monotonic()

    def pick(self, *, cuda: T, cpu: T) -> T:
        """What suits the device."""
        return cuda if self.device == "cuda" else cpu

    def show(self, name: str, values: float | Sequence[float], unit: str, **context: Any) -> None:
        """Print a figure: the median of `values`, with the least, the largest and their number as its spread."""
        series = list(values) if isinstance(values, Sequence) else [values]
        spread = {"low": rounded(min(series)), "high": rounded(max(series)), "of": len(series)}
        self.print_figure(name, median(series), unit, spread if len(series) > 1 else None, context)

    def print_figure(
        self, name: str, value: float, unit: str, spread: dict[str, Any] | None, context: dict[str, Any]
    ) -> None:
        """Print a figure with another kind of spread."""
        line = {"name": name, "value": rounded(value), "unit": unit, "spread": spread, "context": context}
        print(json.dumps(line), flush=True)

    def job(self, name: str, *arguments: str) -> list[str]:
        """The arguments by which Python runs a job of `benchmarks.gpu.jobs` on the device."""
        return ["-m", f"benchmarks.gpu.jobs.{name}", "--device", self.device, *arguments]

    def record(self, name: str, job: Sequence[str], *flags: str, ranks: int = 1, behind: int = SKIP) -> esprof.Run:
        """The recording of a job, kept as `runs/NAME`: a window of `window_steps`, and so many steps `behind` it.

        `flags` are `esprof record`'s.
        """
        out = self.out / "runs" / name
        steps = self.window_steps
        plan = f"--skip {SKIP} --warmup {WARMUP} --steps {steps} --stack-steps 0".split()
        recorder = ["-m", "esprof", "record", "-q", "-f", "-o", str(out), *plan, *flags, "--"]
        self.output([*recorder, *launched(job, ranks), "--steps", str(SKIP + WARMUP + steps + behind)])
        return esprof.load(out)

    @property
    def window_steps(self) -> int:
        return self.pick(cuda=16, cpu=6)

    def output(self, arguments: Sequence[str]) -> str:
        """What Python prints with these arguments. Raises SystemExit with its errors where it fails."""
        done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False, cwd=HOME)
        if done.returncode:
            raise SystemExit(f"{' '.join(arguments)}\nended with {done.returncode}\n{done.stderr[-TAIL:]}")
        return done.stdout


def launched(job: Sequence[str], ranks: int) -> list[str]:
    """The command of a job on so many ranks of this machine; of one rank, it is plain Python's."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={ranks}"]
    return [sys.executable, *(torchrun if ranks > 1 else []), *job]


def rounded(value: float) -> float:
    return float(f"{value:.4g}")
