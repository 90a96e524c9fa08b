"""Collectives between CPUs as `esprof probe` measured them."""

from dataclasses import dataclass
from typing import Self

from esprof.core.types import Rank
from esprof.run.collective_names import collective_word
from esprof.run.curve import Curve
from esprof.run.probes import Probes, Sweep
from esprof.run.run import Run


@dataclass(frozen=True)
class Link:
    """Time per byte of one collective, ns: on the link, and on the CPUs at the same time."""

    ns_per_byte: float
    cpu_ns_per_byte: float
    """Lower bound of the time per byte, however fast the link."""


@dataclass(frozen=True)
class ProbedCollectives:
    """The measured curves (time by bytes) of collectives between CPUs of one run."""

    run: Run
    probes: Probes

    @classmethod
    def of(cls, run: Run) -> Self | None:
        """None where the run has no measured collectives between CPUs."""
        probes = run.probes
        if probes is None or not any(one.kind == "collective" and one.device == "cpu" for one in probes.sweeps):
            return None
        return cls(run, probes)

    def curve(self, name: str, ranks: tuple[Rank, ...]) -> Curve | None:
        """Curve of the collective of this name with these ranks; if not measured, with as many other ranks."""
        sweep = self._sweep(name, ranks)
        return sweep.curve() if sweep is not None else None

    def link(self, name: str, ranks: tuple[Rank, ...]) -> Link | None:
        """Speed of the link for this collective; None where not measured, or where the sizes give no slope."""
        sweep = self._sweep(name, ranks)
        if sweep is None or not (slope := sweep.curve().slope()):
            return None
        cpu_points = [(point.size, (point.cpu_ns,)) for point in sweep.points if point.cpu_ns]
        cpu = Curve.through(cpu_points).slope() if cpu_points else 0.0
        quotas = [quota for rank in ranks if rank in self.run.ranks and (quota := self.run.rank(rank).cpu_quota)]
        return Link(slope, cpu / min([1.0, *quotas]))

    def _sweep(self, name: str, ranks: tuple[Rank, ...]) -> Sweep | None:
        word = collective_word(name)
        return sweep_of(self.probes, word, ranks, device="cpu") if word is not None else None


def sweep_of(probes: Probes, word: str, ranks: tuple[Rank, ...], device: str | None = None) -> Sweep | None:
    """Sweep of a collective (`collective_word`) with these ranks; if not measured, with as many other ranks."""
    alike = [
        one
        for one in probes.sweeps
        if (one.kind, one.name, one.beside) == ("collective", word, "") and one.points and device in (None, one.device)
    ]
    exact = [one for one in alike if one.ranks == ranks]
    return next(iter(exact or [one for one in alike if len(one.ranks) == len(ranks)]), None)
