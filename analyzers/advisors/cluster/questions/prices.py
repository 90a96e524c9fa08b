"""Reads a job with its offers, and their prices from catalogs in SkyPilot's format (`vms.csv`).

The columns used are InstanceType, Price, SpotPrice (both an hour, or empty), Region and AvailabilityZone, which some clouds
lack. The history of a catalog in its repository is a history of prices.
"""

import csv
from itertools import pairwise
from math import inf
from pathlib import Path

import msgspec

from esprof.analyzers.advisors.cluster.mix import read
from esprof.analyzers.advisors.cluster.questions.spot import Offer, OfferName, SpotProblem
from esprof.core.errors import InputError, unreadable

_COLUMNS = {"InstanceType", "Price", "SpotPrice", "Region"}

_MAX_TICKS = 2_000

_UNITS_A_TICK = 12
"""Units of work that the slowest offer does in a tick, unless the file says another unit."""


class ListedOffer(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """An offer of a catalog."""

    name: OfferName
    instance: str
    """`InstanceType` of the catalog."""
    zone: str | None = None
    """`AvailabilityZone` or `Region`; None if the price is the same everywhere."""
    spot: bool = False
    interruptions_per_hour: float | None = None
    """0 if not given, except for spot offers, which need it or a trace."""
    available_share: float = 1.0
    """Share of the time in which it is there."""
    trace: str | None = None
    """File from which to take the interruptions and the share; relative to the file that names it."""
    instances: int = 1
    """Instances that the job needs at once; fewer in the trace are an interruption."""
    steps_per_s: float


class Catalog(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A file of prices, and the hour from which on they apply."""

    file: str
    """Relative to the file that names it."""
    from_h: float = 0.0


class ListedJob(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The file of a job with its offers."""

    steps: float
    deadline_h: float
    tick_h: float = 1.0
    restore_s: float = 0.0
    unit_steps: float | None = None
    offers: tuple[ListedOffer, ...]
    catalogs: tuple[Catalog, ...]


class _TraceTicks(msgspec.Struct, frozen=True):
    gap_seconds: float


class _AvailabilityTrace(msgspec.Struct, frozen=True):
    """A file of SkyPilot's spot-traces: instances that were available, at equal distances in time."""

    metadata: _TraceTicks
    data: tuple[int, ...]


def read_spot(path: Path, page: str) -> SpotProblem:
    """Read a job with its offers, and the prices from its catalogs. Raises InputError."""
    listed = read(path, ListedJob, page)
    starts = [one.from_h for one in listed.catalogs]
    if not starts or starts[0] != 0 or not all(one < other < inf for one, other in pairwise(starts)):
        raise InputError(
            "needs catalogs in the order of their from_h, the first from hour 0 on",
            path=path,
            remedy=f"{page} shows the format.",
        )
    unit = listed.unit_steps
    if unit is None:
        unit = min((one.steps_per_s for one in listed.offers), default=0.0) * listed.tick_h * 3_600 / _UNITS_A_TICK
    posed = SpotProblem(
        steps=listed.steps,
        deadline_h=listed.deadline_h,
        tick_h=listed.tick_h,
        restore_s=listed.restore_s,
        unit_steps=unit,
        offers=(),
    )
    if not 0 < listed.tick_h <= listed.deadline_h <= listed.tick_h * _MAX_TICKS:
        raise InputError(
            f"the deadline must be from 1 to {_MAX_TICKS:,} times tick_h", path=path, remedy="Choose another tick_h."
        )
    tables = [_prices(path.parent / one.file, listed.offers) for one in listed.catalogs]
    seen = [_seen(path, one, page) for one in listed.offers]
    when = [sum(start <= tick * listed.tick_h for start in starts) - 1 for tick in range(posed.ticks)]
    return msgspec.structs.replace(
        posed,
        offers=tuple(
            Offer(
                name=one.name,
                steps_per_s=one.steps_per_s,
                interruptions_per_hour=seen[at][0],
                available_share=seen[at][1],
                prices_per_h=tuple(tables[number][at] for number in when),
            )
            for at, one in enumerate(listed.offers)
        ),
    )


def _seen(path: Path, offer: ListedOffer, page: str) -> tuple[float, float]:
    """Interruptions of an offer per hour in which it is there, and the share of time in which it is: from its trace, or as
    stated."""
    is_stated = offer.interruptions_per_hour is not None
    if is_stated == (offer.trace is not None) and (offer.spot or is_stated):
        raise InputError(
            f"{offer.name} needs either interruptions_per_hour or a trace",
            path=path,
            remedy=f"{page} shows the format.",
        )
    if offer.trace is None:
        return offer.interruptions_per_hour or 0.0, offer.available_share
    file = path.parent / offer.trace
    trace = read(file, _AvailabilityTrace, page)
    there = [count >= offer.instances for count in trace.data]
    hours = sum(there[:-1]) * trace.metadata.gap_seconds / 3_600
    if not 0 < hours < inf:
        raise InputError(
            f"never has {offer.instances} instances", path=file, remedy="Choose another zone, or fewer instances."
        )
    losses = sum(before and not after for before, after in pairwise(there))
    return losses / hours, sum(there) / len(there)


def _prices(path: Path, offers: tuple[ListedOffer, ...]) -> list[float | None]:
    """The price of each offer in a catalog; None if it has none."""
    found: list[set[float | None]] = [set() for _ in offers]
    try:
        with path.open(encoding="utf-8", newline="") as file:
            rows = csv.DictReader(file)
            if missing := _COLUMNS - set(rows.fieldnames or ()):
                raise InputError(
                    f"has no column {min(missing)}", path=path, remedy="Pass a catalog in SkyPilot's format (vms.csv)."
                )
            for row in rows:
                for at, one in enumerate(offers):
                    places = (row.get("AvailabilityZone"), row["Region"])
                    if row["InstanceType"] == one.instance and one.zone in (None, *places):
                        found[at].add(_price(row["SpotPrice" if one.spot else "Price"], path))
    except OSError as error:
        raise unreadable(path, error) from error
    except (csv.Error, UnicodeDecodeError) as error:
        raise InputError(f"is no table: {error}", path=path, remedy="Pass a catalog in SkyPilot's format.") from error
    for one, prices in zip(offers, found, strict=True):
        where = f" in {one.zone}" if one.zone is not None else ""
        if not prices:
            raise InputError(
                f"has no {one.instance}{where}", path=path, remedy="Name an InstanceType and a zone of the catalog."
            )
        if len(prices) > 1:
            raise InputError(
                f"has {len(prices)} prices of {one.instance}{where}", path=path, remedy="Name an AvailabilityZone."
            )
    return [prices.pop() for prices in found]


def _price(text: str | None, path: Path) -> float | None:
    if not text:
        return None
    try:
        price = float(text)
    except ValueError:
        price = -1.0
    if not 0 <= price < inf:
        raise InputError(f"has the price {text}", path=path, remedy="Pass a catalog in SkyPilot's format.")
    return price
