"""`network=2x`, `network=600Gbit`: links that carry more."""

import re

import numpy as np

from esprof.core.errors import UsageError
from esprof.replay.dfg import Cls
from esprof.replay.whatif.communication.rates import GBIT, Rate, times_as_fast
from esprof.replay.whatif.graph.selections import not_recorded, required
from esprof.replay.whatif.scenario import Scenario
from esprof.replay.whatif.term import Kind, Resource, Speed, Term, speed_up

PRESETS = {
    "10GbE": 10,
    "25GbE": 25,
    "100GbE": 100,
    "HDR": 200,
    "graphene": 210,  # 32 modulators of 7 Gbit/s on a chip, 94 % of which work
    "NDR": 400,
    "XDR": 800,
}
"""Rates of links by name, Gbit/s: Ethernet, InfiniBand with four lanes, and a chip of graphene modulators."""

_UNITS = {"M": 1e6, "G": GBIT, "T": 1e12}
_RATE = re.compile(r"(?P<number>\d{1,9}(?:\.\d{1,17})?)(?P<unit>[MGT])bit(?:/s)?")
_MIN_BITS, _MAX_BITS = 1e6, 1e15


def _value(text: str) -> float | Rate:
    """Read a speed-up, a rate such as `600Gbit`, or the name of a preset. Raises UsageError."""
    if text in PRESETS:
        return Rate(PRESETS[text] * GBIT)
    if not (found := _RATE.fullmatch(text)):
        return _speed_up(text)
    rate = Rate(float(found["number"]) * _UNITS[found["unit"]])
    if not _MIN_BITS <= rate.bits_per_s <= _MAX_BITS:
        raise UsageError(f"{text!r} is not a rate from 1Mbit to 1000Tbit")
    return rate


def _speed_up(text: str) -> float:
    try:
        return speed_up(text)
    except UsageError as error:
        remedy = f"Write 2x for twice as fast, a rate such as 600Gbit, or one of {', '.join(PRESETS)}."
        raise UsageError(error.reason, remedy=remedy) from error


def _nodes(scenario: Scenario, term: Term) -> np.ndarray:
    dfg = scenario.dfg
    return required(dfg.of(Cls.COMMUNICATION), not_recorded(dfg, "communication"))


def _factor(scenario: Scenario, term: Term) -> np.ndarray:
    if isinstance(term.value, Rate):
        return times_as_fast(scenario, term.value)
    return np.full(scenario.dfg.nodes, term.value)


TERM = Kind(
    name="network",
    examples=("network=2x", "network=600Gbit", "network=NDR"),
    meaning="Links carry this many times the bytes per second, or this many bits per second in each direction, by number or "
    f"by name ({', '.join(PRESETS)}). Between GPUs, the latency of a collective stays. "
    "Between CPUs, only the link's share of its time shrinks: as the probe measured it, or else as collectives of its "
    "kind show it while the ranks only wait, or else the fastest ones. With a rate, `esprof replay` notes what then bounds "
    "the steps, and from which rate on a faster link gains less than 1 %.",
    needs="Collectives that are matched on all their ranks; for a rate, at least one with a known size.",
    assumes="Latency and CPU work of a collective do not depend on the link. A rate is what collectives reach: write "
    "540Gbit for links of 600 Gbit/s that are used to 90 %. All links have it, those within a host included.",
    effect=Speed(Resource.LINK, _nodes, _factor),
    value=_value,
)
