"""Devices shared among jobs in time: the variables and limits that all policies have in common (Gavel, OSDI 2020, §3).

A variable is the share of time that a job, or two jobs together, spend on one type of device. Equal jobs are one class: its
jobs can divide its time evenly, since averages of solutions are solutions. Classes make the program smaller and change no
optimum.

As in Gavel, a job that needs four devices at once may get half of its time on a type with only two devices: the programs
count time, not slots. Advice has a warning for such a job.
"""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from scipy.sparse import coo_array, csr_array

from esprof.analyzers.advisors.cluster.mix import DeviceType, Mix, SharingJob

Column = tuple[int, int, int, float, float]
"""A variable: class, class that shares its devices (-1 for none), type of device, and the steps per second of both
classes."""


@dataclass(frozen=True)
class Sharing:
    """The classes of a mix, and the variables for their time on each type of device."""

    mix: Mix
    kinds: tuple[DeviceType, ...]
    """Types of device, in the order of the mix."""
    classes: tuple[tuple[int, ...], ...]
    """Positions of the jobs of each class."""
    columns: tuple[Column, ...]

    @classmethod
    def of(cls, mix: Mix, keys: Sequence[Hashable] | None = None) -> "Sharing":
        """Group jobs with equal `keys` (one per job) and equal throughputs into classes; None makes one class per job."""
        kinds = tuple(mix.cluster)
        grouped: dict[Hashable, list[int]] = defaultdict(list)
        for at, job in enumerate(mix.jobs):
            grouped[at if keys is None else (_profile(job), keys[at])].append(at)
        classes = tuple(map(tuple, grouped.values()))
        firsts = [mix.jobs[jobs[0]] for jobs in classes]
        columns = (*_alone(mix, firsts), *_together(mix, firsts, [len(jobs) for jobs in classes]))
        return cls(mix, kinds, classes, columns)

    def first(self, number: int) -> SharingJob:
        """The first job of a class; all jobs of a class are alike."""
        return self.mix.jobs[self.classes[number][0]]

    @cached_property
    def sizes(self) -> np.ndarray:
        """Jobs of each class, float64[classes]."""
        return np.array([len(jobs) for jobs in self.classes], float)

    @cached_property
    def rates(self) -> csr_array:
        """Steps per second of one job of each class, if the class spends all its time in a variable,
        float64[classes, variables]."""
        entries = [(mine, at, rate / self.sizes[mine]) for at, (mine, _, _, rate, _) in enumerate(self.columns)]
        entries += [
            (its, at, rate / self.sizes[its]) for at, (_, its, _, _, rate) in enumerate(self.columns) if its >= 0
        ]
        return _matrix(entries, (len(self.classes), len(self.columns)))

    @cached_property
    def limits(self) -> tuple[csr_array, np.ndarray]:
        """(rows, bounds) of the constraints common to all policies: time of each class, then devices of each type."""
        time = [(mine, at, 1.0) for at, (mine, *_) in enumerate(self.columns)]
        time += [(its, at, 1.0) for at, (_, its, *_) in enumerate(self.columns) if its >= 0]
        below = len(self.classes)
        held = [
            (below + kind, at, float(self.first(mine).scale_factor))
            for at, (mine, _, kind, *_) in enumerate(self.columns)
        ]
        counts = [float(self.mix.cluster[kind]) for kind in self.kinds]
        rows = _matrix([*time, *held], (below + len(self.kinds), len(self.columns)))
        return rows, np.concatenate([self.sizes, counts])


def _profile(job: SharingJob) -> Hashable:
    """Everything on which the throughputs of a job depend."""
    pairs = tuple((pair.with_, tuple(sorted(pair.throughput_steps_per_s.items()))) for pair in job.together)
    return (job.workload, job.scale_factor, tuple(sorted(job.throughput_steps_per_s.items())), pairs)


def _alone(mix: Mix, jobs: Sequence[SharingJob]) -> Iterable[Column]:
    for number, job in enumerate(jobs):
        for at, kind in enumerate(mix.cluster):
            if rate := job.throughput_steps_per_s.get(kind, 0.0):
                yield number, -1, at, rate, 0.0


def _together(mix: Mix, jobs: Sequence[SharingJob], sizes: Sequence[int]) -> Iterable[Column]:
    """Each pair of classes once, as listed first; a class is paired with itself if it has two jobs."""
    seen = set()
    for mine, job in enumerate(jobs):
        for pair in job.together:
            for its, other in enumerate(jobs):
                fits = other.workload == pair.with_ and other.scale_factor == job.scale_factor
                if not fits or (mine == its and sizes[mine] < 2) or (its, mine) in seen:
                    continue
                seen.add((mine, its))
                for at, kind in enumerate(mix.cluster):
                    rates = pair.throughput_steps_per_s.get(kind, (0.0, 0.0))
                    if all(rates):
                        yield mine, its, at, *rates


def _matrix(entries: Sequence[tuple[int, int, float]], shape: tuple[int, int]) -> csr_array:
    """Sparse matrix from entries (row, column, value); duplicates are summed."""
    if not entries:
        return csr_array(shape)
    row, column, value = zip(*entries, strict=True)
    return csr_array(coo_array((value, (row, column)), shape=shape))
