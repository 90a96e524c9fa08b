"""Number of workers for each elastic job, from measured scaling curves.

Lyra (EuroSys 2023, §5.2) assigns the devices that remain after base demands by a multiple-choice knapsack. Curves are as
measured: they need not be concave, and more workers may even be slower.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class SizeChoice:
    """One of the sizes that a job may have."""

    devices: int
    value: float


@dataclass(frozen=True)
class Sizes:
    """The size chosen for each job."""

    chosen: tuple[int, ...]
    """Position of each job's choice."""
    value: float
    devices: int


def deal_out(jobs: Sequence[Sequence[SizeChoice]], devices: int) -> Sizes:
    """The choices, one per job, with the largest total value on at most `devices`; of equals, those on the fewest devices.

    Exact, by dynamic programming over jobs and devices. Raises ValueError if even the smallest choices need more devices.
    """
    if sum(min(choice.devices for choice in choices) for choices in jobs) > devices:
        raise ValueError("even the smallest sizes need more devices than there are")
    # best[d]: the largest value of the jobs so far with exactly d devices.
    best = np.full(devices + 1, -np.inf)
    best[0] = 0.0
    picks = np.zeros((len(jobs), devices + 1), np.int16 if max(map(len, jobs), default=0) < 1 << 15 else np.int32)
    for number, choices in enumerate(jobs):
        best, picks[number] = _with_one_more(best, choices)
    taken = int(np.argmax(best))  # The first of equals: the fewest devices.
    value, chosen, left = float(best[taken]), [], taken
    for number in range(len(jobs) - 1, -1, -1):
        pick = int(picks[number, left])
        chosen.append(pick)
        left -= jobs[number][pick].devices
    return Sizes(tuple(reversed(chosen)), value, taken)


def _with_one_more(best: np.ndarray, choices: Sequence[SizeChoice]) -> tuple[np.ndarray, np.ndarray]:
    """The largest values with one more job, float64[devices + 1], and its choice for each."""
    better, pick = np.full(len(best), -np.inf), np.zeros(len(best), np.int32)
    for number, choice in enumerate(choices):
        if choice.devices >= len(best):
            continue
        values = best[: len(best) - choice.devices] + choice.value
        wins = values > better[choice.devices :]
        better[choice.devices :][wins] = values[wins]
        pick[choice.devices :][wins] = number
    return better, pick
