"""Achieved bandwidth of collectives by kind, group and size."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from esprof.analyzers.ops.answer import CollectiveRate
from esprof.analyzers.views.links import link_peak
from esprof.core.types import NS_PER_S, Bytes, Rank, us
from esprof.replay.building.build import MatchedRanks, matched_ranks
from esprof.replay.building.rank_events import members_of
from esprof.replay.steps import RecordedSteps
from esprof.replay.whatif.communication.links import bus_factor
from esprof.run.run import Run


@dataclass(frozen=True)
class CollectiveRates:
    """The collectives of the steady-state steps."""

    known: tuple[CollectiveRate, ...] = ()
    """Most time first."""
    unknown_share: float = 0.0
    """Share of their time in collectives of unknown kind, group or size, from 0 to 1."""


@dataclass(frozen=True)
class _RateKey:
    """What one row of the table holds."""

    word: str
    ranks: tuple[Rank, ...]
    size: int
    """Bits of the number of bytes: sizes of one row are between two powers of two."""
    is_matched: bool


@dataclass
class _RateSum:
    """Sums over calls."""

    sizes: list[Bytes] = field(default_factory=list)
    took_ns: float = 0.0


def collective_rates(steps: RecordedSteps, ranks: Sequence[Rank]) -> CollectiveRates:
    """The bandwidths of the collectives of these ranks in the steady-state steps."""
    found, unknown_ns = dict[_RateKey, _RateSum](), 0.0
    matched = matched_ranks(steps)
    groups = _ranks_of(steps.run, matched)
    for column, rank in enumerate(steps.run.ranks):
        if rank not in ranks:
            continue
        for key, size, took_ns in _calls(matched, column, groups, steps):
            if key is None:
                unknown_ns += took_ns
            else:
                one = found.setdefault(key, _RateSum())
                one.sizes.append(size)
                one.took_ns += took_ns
    known_ns = sum(one.took_ns for one in found.values())
    per = len(steps.steady) * len(ranks)
    return CollectiveRates(
        tuple(_rate(steps.run, key, one, per) for key, one in sorted(found.items(), key=lambda item: -item[1].took_ns)),
        round(unknown_ns / (known_ns + unknown_ns), 4) if unknown_ns else 0.0,
    )


def _rate(run: Run, key: _RateKey, one: _RateSum, per: int) -> CollectiveRate:
    rate = sum(one.sizes) / max(one.took_ns, 1) * NS_PER_S
    return CollectiveRate(
        collective=key.word,
        ranks=key.ranks,
        smallest=min(one.sizes),
        largest=max(one.sizes),
        calls=round(len(one.sizes) / per, 3),
        us=us(one.took_ns / len(one.sizes)),
        algorithm_bytes_per_s=round(rate),
        bus_bytes_per_s=round(rate * (bus_factor(key.word, len(key.ranks)) or 0.0)),
        peak=link_peak(run, key.ranks),
        is_matched=key.is_matched,
    )


def _ranks_of(run: Run, matched: MatchedRanks) -> dict[int, tuple[Rank, ...]]:
    """Number of each matched collective -> the ranks that were matched."""
    found: dict[int, list[Rank]] = {}
    for number, column in zip(matched.number.tolist(), matched.calls.rank.tolist(), strict=True):
        if number >= 0:
            found.setdefault(number, []).append(run.ranks[column])
    return {number: tuple(sorted(ranks)) for number, ranks in found.items()}


def _calls(
    matched: MatchedRanks, column: int, groups: dict[int, tuple[Rank, ...]], steps: RecordedSteps
) -> Iterator[tuple[_RateKey | None, Bytes, float]]:
    """(key, bytes, duration in ns) of each call of a rank in the steady-state steps; None without kind, group or size."""
    events, rendezvous = matched.events[column], matched.rendezvous.by_rank[column]
    calls = events.collectives
    is_steady = np.isin(events.launched_in(calls.row), steps.steady)
    size = np.where(events.is_batched_p2p, -1, calls.bytes)
    # The size of a gather is that of its output, which is more than its input.
    received = events.ints("out_bytes", calls.row)
    named = [members_of(steps.run, name) if name is not None else () for name in calls.groups]
    for call in np.flatnonzero(is_steady).tolist():
        word, number = calls.words[calls.word[call]], int(rendezvous.number[call])
        took_ns = float(
            rendezvous.communication_ns[call]
            if number >= 0
            else events.end[calls.row[call]] - events.start[calls.row[call]]
        )
        ranks = named[calls.group[call]] or groups.get(number, ())
        if len(ranks) == 1:
            continue
        is_known = word is not None and bus_factor(word, 2) is not None and len(ranks) > 1 and size[call] > 0
        if word is None or not is_known or (word == "all_gather" and received[call] <= 0):
            yield None, 0, took_ns
        else:
            yield _RateKey(word, ranks, int(size[call]).bit_length(), number >= 0), int(size[call]), took_ns
