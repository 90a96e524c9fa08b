"""Advice on more or other devices for one elastic job, and on numbers of ESTs that use them well.

EasyScale (SC 2023, §4.2) ranks proposals of "n more devices of a type" by the speedup per device. ESTs are indivisible, so
two more devices may bring more than twice as much as one.
"""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from esprof.analyzers.advisors.job.makespan import Device, EstCounts, fewest_devices, fewest_seconds, waste
from esprof.core.errors import UsageError
from esprof.core.types import Bytes

_MAX_WASTE_SHARE = 0.30
"""Largest share of idle capacity of an accepted proposal, as in EasyScale."""

_MAX_SIZES_SHOWN = 8


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """The devices of one type."""

    count: int
    memory_gb: float | None = None
    """Memory of each device, 10^9 bytes; None if it is no limit."""
    mig: bool = False
    """Whether its GPUs may be cut into slices (NVIDIA's Multi-Instance GPU)."""


class Inventory(msgspec.Struct, frozen=True, kw_only=True):
    """The available devices by type, and limits on a job's use of them."""

    devices: dict[str, int | Model]
    max_devices: int | None = None
    single_type: bool = False
    """Whether all devices must be of one type, so that all compute the same bits."""

    @property
    def counts(self) -> dict[str, int]:
        return {kind: one if isinstance(one, int) else one.count for kind, one in self.devices.items()}

    def has_room(self, kind: str, needed: Bytes | None) -> bool:
        """Whether `needed` bytes fit into the memory of a device; True if either is unknown."""
        one = self.devices[kind]
        known = isinstance(one, Model) and one.memory_gb is not None and needed is not None
        return not known or needed <= one.memory_gb * 1e9  # type: ignore[operator, union-attr]


class GrowthProposal(msgspec.Struct, frozen=True, kw_only=True):
    """Additional devices of one type."""

    kind: str
    devices: int
    compute_us: float
    """Predicted time of the slowest device."""
    gain_pct: float
    """Reduction of that time."""
    gain_each_pct: float
    """Gain in speed per new device."""


class GoodCount(msgspec.Struct, frozen=True, kw_only=True):
    """A number of ESTs that uses all devices well."""

    n_est: int
    ests_per_s: float
    waste_pct: float


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """Devices of an inventory that would help a job. Times are of computation only: links to new devices are unknown."""

    compute_us: float
    """Time of the slowest device, on the best devices of the inventory."""
    devices: dict[str, int]
    """Number of the best devices, by type."""
    ests: dict[str, tuple[int, ...]]
    """ESTs of each of them."""
    waste_pct: float
    fewest: dict[str, int]
    """The fewest devices whose time is within `within_pct` of `compute_us`, by type."""
    within_pct: float
    proposals: tuple[GrowthProposal, ...]
    """Additions to the job's present devices, the largest gain per device first."""
    good_counts: tuple[GoodCount, ...]
    """Numbers of ESTs near the job's with less idle capacity on all devices. They change the training."""


def growth(
    now: Sequence[Device],
    kinds: Mapping[str, Device],
    inventory: Inventory,
    n_est: int,
    within_pct: float = 5.0,
) -> Growth:
    """Advise a job that has the devices `now`; `kinds` has its costs on each type, with `most` 0 if it does not fit.

    Raises UsageError if the inventory cannot run the job.
    """
    pool, best = _best(kinds, inventory, n_est)
    few = fewest_devices(pool, n_est, best.step_s * (1 + within_pct / 100)) or best.ests
    used = [(device.kind, count) for device, count in zip(pool, best.ests, strict=True) if count]
    found = _proposals(now, kinds, inventory, n_est)
    proposals = sorted(found, key=lambda one: (-one.gain_each_pct, -one.devices, one.kind))
    return Growth(
        compute_us=_us(best.step_s),
        devices=_counted(kind for kind, _ in used),
        ests={kind: tuple(count for one, count in used if one == kind) for kind in _counted(kind for kind, _ in used)},
        waste_pct=round(100 * waste(pool, best.ests), 3),
        fewest=_counted(device.kind for device, count in zip(pool, few, strict=True) if count),
        within_pct=within_pct,
        proposals=tuple(proposals[:_MAX_SIZES_SHOWN]),
        good_counts=tuple(_good_counts(pool, n_est, inventory.max_devices)),
    )


def _best(kinds: Mapping[str, Device], inventory: Inventory, n_est: int) -> tuple[list[Device], EstCounts]:
    """The devices to choose from, of all types or of the best one, and the best counts on them."""
    pools = [[kinds[kind]] * min(count, n_est) for kind, count in inventory.counts.items()]
    if not inventory.single_type:
        pools = [[device for pool in pools for device in pool]]
    found = []
    for pool in pools:
        try:
            found.append((pool, fewest_seconds(pool, n_est, inventory.max_devices)))
        except UsageError as error:
            reason = error
    if not found:
        raise UsageError(f"no device of the inventory has room for the job: {reason.reason}")
    return min(found, key=lambda one: one[1].step_s)


def _proposals(
    now: Sequence[Device], kinds: Mapping[str, Device], inventory: Inventory, n_est: int
) -> Iterator[GrowthProposal]:
    most = n_est if inventory.max_devices is None else min(n_est, inventory.max_devices)
    have = _counted(device.kind for device in now)
    before = fewest_seconds(now, n_est).step_s
    for kind, count in inventory.counts.items():
        if kinds[kind].most == 0 or (inventory.single_type and set(have) != {kind}):
            continue
        for more in range(1, min(count - have.get(kind, 0), most - len(now)) + 1):
            devices = [*now, *[kinds[kind]] * more]
            after = fewest_seconds(devices, n_est)
            gain = 1 - after.step_s / before
            if gain > 0 and waste(devices, after.ests) <= _MAX_WASTE_SHARE:
                yield GrowthProposal(
                    kind=kind,
                    devices=more,
                    compute_us=_us(after.step_s),
                    gain_pct=round(100 * gain, 3),
                    gain_each_pct=round(100 * (before / after.step_s - 1) / more, 3),
                )


def _good_counts(pool: Sequence[Device], n_est: int, most_devices: int | None) -> Iterator[GoodCount]:
    """Numbers of ESTs, up to twice the job's, with less idle capacity than any smaller one from the job's on."""
    least = waste(pool, fewest_seconds(pool, n_est, most_devices).ests)
    found = 0
    for count in range(n_est + 1, 2 * n_est + 1):
        best = fewest_seconds(pool, count, most_devices)
        idle = waste(pool, best.ests)
        if idle < least - 1e-3 and found < _MAX_SIZES_SHOWN:
            least, found = idle, found + 1
            yield GoodCount(n_est=count, ests_per_s=round(count / best.step_s, 4), waste_pct=round(100 * idle, 3))


def _counted(kinds: Iterator[str]) -> dict[str, int]:
    found: dict[str, int] = {}
    for kind in kinds:
        found[kind] = found.get(kind, 0) + 1
    return found


def _us(seconds: float) -> float:
    return round(1e6 * seconds, 3)
