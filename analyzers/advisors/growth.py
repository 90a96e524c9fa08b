"""Whether more or other devices are worth having for one elastic job, and which numbers of ESTs use them well.

EasyScale (SC 2023, §4.2) ranks proposals "n more devices of a type" by the speed-up that each of them brings. Whole ESTs
make that uneven: two more may bring more than twice what one does.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from esprof.analyzers.advisors.makespan import Device, fewest_devices, fewest_seconds, waste

_MOST_WASTE = 0.30
"""EasyScale accepts no larger share of idle devices."""

_SHOWN = 8


class Proposal(msgspec.Struct, frozen=True, kw_only=True):
    """So many devices more of one type."""

    kind: str
    devices: int
    compute_us: float
    """Of the slowest device, then."""
    gain_pct: float
    """What that falls by."""
    gain_each_pct: float
    """Of that, what each of the new devices brings."""


class GoodCount(msgspec.Struct, frozen=True, kw_only=True):
    """A number of ESTs that uses all devices well."""

    n_est: int
    ests_per_s: float
    waste_pct: float


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """What an inventory offers a job. Times are of computing alone: links to devices that the job never had are unknown."""

    compute_us: float
    """Of the slowest device, on the best devices of the inventory."""
    devices: dict[str, int]
    """How many of each type that takes."""
    ests: dict[str, tuple[int, ...]]
    """ESTs of each of them."""
    waste_pct: float
    fewest: dict[str, int]
    """The fewest devices within `within_pct` of that."""
    within_pct: float
    proposals: tuple[Proposal, ...]
    """From what the job has now, the most for each device first."""
    good_counts: tuple[GoodCount, ...]
    """Numbers of ESTs near the job's that leave less idle, on all devices; a change of the training."""


def growth(
    now: Sequence[Device],
    kinds: Mapping[str, Device],
    inventory: Mapping[str, int],
    n_est: int,
    within_pct: float = 5.0,
) -> Growth:
    """What an inventory (devices by type) offers a job that has the devices `now`; `kinds` is what it takes on each type.

    Raises UsageError where the inventory cannot run the job.
    """
    pool = [kinds[kind] for kind, count in inventory.items() for _ in range(min(count, n_est))]
    best = fewest_seconds(pool, n_est)
    few = fewest_devices(pool, n_est, best.step_s * (1 + within_pct / 100)) or best.ests
    used = [(device.kind, count) for device, count in zip(pool, best.ests, strict=True) if count]
    proposals = sorted(
        _proposals(now, kinds, inventory, n_est), key=lambda one: (-one.gain_each_pct, -one.devices, one.kind)
    )
    return Growth(
        compute_us=_us(best.step_s),
        devices=_counted(kind for kind, _ in used),
        ests={kind: tuple(count for one, count in used if one == kind) for kind in _counted(kind for kind, _ in used)},
        waste_pct=round(100 * waste(pool, best.ests), 3),
        fewest=_counted(device.kind for device, count in zip(pool, few, strict=True) if count),
        within_pct=within_pct,
        proposals=tuple(proposals[:_SHOWN]),
        good_counts=tuple(_good_counts(pool, n_est)),
    )


def _proposals(
    now: Sequence[Device], kinds: Mapping[str, Device], inventory: Mapping[str, int], n_est: int
) -> Iterator[Proposal]:
    have = _counted(device.kind for device in now)
    before = fewest_seconds(now, n_est).step_s
    for kind, count in inventory.items():
        for more in range(1, min(count - have.get(kind, 0), n_est - len(now)) + 1):
            devices = [*now, *[kinds[kind]] * more]
            after = fewest_seconds(devices, n_est)
            gain = 1 - after.step_s / before
            if gain > 0 and waste(devices, after.ests) <= _MOST_WASTE:
                yield Proposal(
                    kind=kind,
                    devices=more,
                    compute_us=_us(after.step_s),
                    gain_pct=round(100 * gain, 3),
                    gain_each_pct=round(100 * (before / after.step_s - 1) / more, 3),
                )


def _good_counts(pool: Sequence[Device], n_est: int) -> Iterator[GoodCount]:
    """Up to twice as many ESTs, where fewer than any smaller number around leave less idle."""
    least = waste(pool, fewest_seconds(pool, n_est).ests)
    found = 0
    for count in range(n_est + 1, 2 * n_est + 1):
        best = fewest_seconds(pool, count)
        idle = waste(pool, best.ests)
        if idle < least - 1e-3 and found < _SHOWN:
            least, found = idle, found + 1
            yield GoodCount(n_est=count, ests_per_s=round(count / best.step_s, 4), waste_pct=round(100 * idle, 3))


def _counted(kinds: Iterator[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind in kinds:
        found[kind] = found.get(kind, 0) + 1
    return found


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)
