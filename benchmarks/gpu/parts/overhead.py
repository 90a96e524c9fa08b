"""Overhead: what recording costs a job outside windows and in them, by pairs of steps that lie next to each other."""

import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import overhead
from benchmarks.gpu.kit import Kit
from benchmarks.gpu.sizes import LARGE, SMALL, size
from benchmarks.speed import Bench


@dataclass(frozen=True)
class OnDevice(overhead.Job):
    """The job of the kit; `size` are its arguments."""

    def argv(self, folder: Path, steps: int) -> list[str]:
        return [f"benchmarks.gpu.jobs.{self.module}", "--steps", str(steps), *self.size.split()]


class Shown(Bench):
    """Figures of `benchmarks.overhead`, shown as the kit's: their spread is a 95 % interval."""

    def __init__(self, kit: Kit) -> None:
        super().__init__(repeats=1)
        self._kit = kit

    def print(self, name: str, value: float, unit: str, context: dict[str, Any]) -> None:
        spread = {key: context.get(key) for key in ("low", "high", "iqr")} if "low" in context else None
        rest = {key: value for key, value in context.items() if key not in (spread or ())}
        self._kit.print_figure(name, value, unit, spread, rest)


def measure(kit: Kit) -> None:
    bench = Shown(kit)
    for kind, steps in ((LARGE, kit.pick(cuda=320, cpu=200)), (SMALL, kit.pick(cuda=800, cpu=200))):
        job = OnDevice(kind, "train", " ".join(["--device", kit.device, *size(kit, kind)]), steps)
        with tempfile.TemporaryDirectory() as folder:
            overhead.outside(bench, job, Path(folder))
            overhead.inside(bench, job, Path(folder))
