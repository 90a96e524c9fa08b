"""What a job costs on each choice of devices, against how long it takes; with devices that may be taken away."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from esprof.analyzers.advisors.mix import DeviceType, Job

_PER_HOUR = 3_600


class Price(msgspec.Struct, frozen=True, kw_only=True):
    """What a device costs, and how sure one is of keeping it."""

    per_hour: float
    interruptions_per_hour: float = 0.0
    """Of a spot device."""


class Recovery(msgspec.Struct, frozen=True, kw_only=True):
    """What an interruption costs a job."""

    restore_s: float = 0.0
    checkpoint_every_s: float = 0.0
    """On average half of it is done again."""
    checkpoint_share: float = 0.0
    """Share of all time that goes to checkpoints."""


class Option(msgspec.Struct, frozen=True, kw_only=True):
    """A job on one type of device to its end."""

    kind: DeviceType
    hours: float
    money: float


def longer(price: Price, recovery: Recovery) -> float:
    """How many times as long a job takes for checkpoints and interruptions, to first order in their rate (Narayanan et al.,
    DISPA 2020): 1 + overhead + rate (restore + interval / 2)."""
    lost_s = recovery.restore_s + recovery.checkpoint_every_s / 2
    return 1 + recovery.checkpoint_share + price.interruptions_per_hour * lost_s / _PER_HOUR


def options(job: Job, prices: Mapping[DeviceType, Price], recovery: Recovery) -> Iterator[Option]:
    """The job on each type for which both throughput and price are known."""
    for kind, price in prices.items():
        rate = job.throughput_steps_per_s.get(kind, 0.0)
        if rate and job.steps:
            hours = job.steps / rate / _PER_HOUR * longer(price, recovery)
            yield Option(kind=kind, hours=hours, money=hours * price.per_hour * job.scale_factor)


def frontier(found: Sequence[Option]) -> tuple[Option, ...]:
    """The options for which none is both quicker and cheaper, the quickest first."""
    kept: list[Option] = []
    for one in sorted(found, key=lambda one: (one.hours, one.money, one.kind)):
        if not kept or one.money < kept[-1].money:
            kept.append(one)
    return tuple(kept)


def cheapest(found: Sequence[Option], deadline_h: float | None = None) -> Option | None:
    """The cheapest option that keeps the deadline; None where none does."""
    in_time = [one for one in found if deadline_h is None or one.hours <= deadline_h]
    return min(in_time, key=lambda one: (one.money, one.hours, one.kind), default=None)


def break_even(chosen: Option, other: Option, price: Price) -> float:
    """The hourly price of the `other`'s device, now `price`, at which both cost the same."""
    return price.per_hour * chosen.money / other.money
