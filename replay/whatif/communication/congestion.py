"""Collectives between CPUs with another TCP congestion control, as `esprof probe` measured them."""

from dataclasses import dataclass
from typing import Self

import numpy as np

from esprof.core.statistics import holm
from esprof.replay.whatif.communication.links import between_cpus
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.run.collective_names import collective_word
from esprof.run.curve import BeyondCurveError, Curve
from esprof.run.probes import Kind, Probes, Sweep

_KIND: Kind = "congestion"

MAX_CHANCE = 0.01
"""Largest probability, adjusted for the number of tests, that repeats of two controls differ as they do by chance."""


@dataclass(frozen=True)
class ProbedControls:
    """Measured collectives of a run with the control of its hosts, and with another one."""

    probes: Probes
    present: str
    other: str

    @classmethod
    def of(cls, probes: Probes | None, other: str) -> Self:
        """Raises Declined unless both controls were measured."""
        if probes is None or not any(sweep.kind == _KIND for sweep in probes.sweeps):
            reasons = [row.reason for row in probes.left_out if row.what == "TCP congestion controls"] if probes else []
            raise Declined(": ".join(["no TCP congestion control was measured (esprof probe)", *reasons[:1]]))
        controls = {one.congestion or "an unknown one" for one in probes.conditions}
        if len(controls) != 1:
            raise Declined(f"the hosts have different TCP congestion controls: {', '.join(sorted(controls))}")
        (present,) = controls
        if other == present:
            raise Declined(f"{other} is the TCP congestion control of the hosts already")
        for control in (present, other):
            cls._require(probes, control)
        return cls(probes, present, other)

    @staticmethod
    def _require(probes: Probes, control: str) -> None:
        measured = measured_controls(probes)
        if control in measured:
            return
        refused = [row.reason for row in probes.left_out if row.what == f"TCP congestion control {control}"]
        raise Declined(refused[0] if refused else f"{control} was not measured, only {', '.join(measured)}")

    def times_as_fast(self, word: str | None, ranks: int, sizes: np.ndarray) -> np.ndarray:
        """How many times as fast collectives of these sizes in bytes become among so many ranks, float64[N].

        Smaller ones than measured have the ratio of the smallest. Raises Declined for what was not measured.
        """
        before, after = (self._curve(word, ranks, control) for control in (self.present, self.other))
        distinct, which = np.unique(sizes, return_inverse=True)
        least = max(int(curve.sizes[0]) for curve in (before, after))
        try:
            ratio = [before.at(size) / after.at(size) for size in np.maximum(distinct, least).tolist()]
        except BeyondCurveError as error:
            raise Declined(f"{word}: {error.in_bytes}") from error
        return np.array(ratio)[which]

    def is_clearly_faster(self) -> bool:
        """Whether the other control is faster at the largest size of a collective, by Mann–Whitney tests of the repeats.

        All other controls were measured to find it, so all of them count as tested (Holm's correction).
        """
        chances = self._chances()
        adjusted = zip(chances, holm([*chances.values()]), strict=True)
        return any(chance < MAX_CHANCE for (_, control), chance in adjusted if control == self.other)

    def _chances(self) -> dict[tuple[str, str], float]:
        """(collective, control) -> probability that its repeats are as much shorter than with the present one by chance."""
        from scipy.stats import mannwhitneyu  # Importing it takes longer than most commands.

        sweeps = [sweep for sweep in self.probes.sweeps if sweep.kind == _KIND]
        took = {sweep.name: {point.size: point.samples_ns for point in sweep.points} for sweep in sweeps}
        found = {}
        for name, after in took.items():
            word, _, control = name.partition(":")
            before = took.get(f"{word}:{self.present}", {})
            size = max(before.keys() & after.keys(), default=None)
            if control != self.present and size is not None:
                found[word, control] = float(mannwhitneyu(before[size], after[size], alternative="greater").pvalue)
        return found

    def _curve(self, word: str | None, ranks: int, control: str) -> Curve:
        sweep = self.probes.find(_KIND, f"{word}:{control}")
        if sweep is None or len(sweep.ranks) != ranks:
            raise Declined(f"{word or 'a collective'} among {ranks} ranks was not measured with {control}")
        return _of_means(sweep)


def measured_controls(probes: Probes) -> list[str]:
    """Names of the controls with which collectives were measured."""
    return sorted({sweep.name.partition(":")[2] for sweep in probes.sweeps if sweep.kind == _KIND and sweep.points})


def times_as_fast(now: Scenario, control: str) -> np.ndarray:
    """How many times as fast each collective between CPUs becomes with a TCP congestion control, float64[N]; 1 for other
    nodes. Raises Declined without measurements."""
    dfg, controls = now.dfg, ProbedControls.of(now.run.probes, control)
    factor = np.ones(dfg.nodes)
    nodes = between_cpus(dfg)
    ranks = np.bincount(dfg.collective[nodes])[dfg.collective[nodes]]
    kinds, which = np.unique(np.stack([dfg.name[nodes], ranks]), axis=1, return_inverse=True)
    for number, (name, count) in enumerate(kinds.T.tolist()):
        mine = nodes[which.reshape(-1) == number]
        factor[mine] = controls.times_as_fast(collective_word(dfg.names[name]), count, dfg.bytes[mine])
    return factor


def _of_means(sweep: Sweep) -> Curve:
    """Mean time by size. Lost packets make a few repeats very long, which a median would hide."""
    return Curve.through([(point.size, (round(float(np.mean(point.samples_ns))),)) for point in sweep.points])
