"""Links of a given rate: how many times as fast they are as the recorded ones."""

from dataclasses import dataclass

import numpy as np

from esprof.core.types import NS_PER_S
from esprof.replay.dfg import Cls
from esprof.replay.whatif.communication.links import bus_factors, link_share, ns_per_byte
from esprof.replay.whatif.communication.probed import ProbedCollectives
from esprof.replay.whatif.scenario import Declined, Scenario

GBIT = 1e9
"""Bits."""


@dataclass(frozen=True)
class Rate:
    """Bits per second that each link carries in one direction, as collectives reach them."""

    bits_per_s: float

    @property
    def bytes_per_ns(self) -> float:
        return self.bits_per_s / 8 / NS_PER_S


def times_as_fast(now: Scenario, rate: Rate) -> np.ndarray:
    """How many times as fast the link of each collective becomes, float64[N]; 1 for other nodes, and for those of no bytes.

    A link carries `bus_factor` bytes for a byte of a collective. Raises Declined if no collective has a known size.
    """
    dfg = now.dfg
    nodes = np.flatnonzero(dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0) & (dfg.bytes > 0))
    if not len(nodes):
        raise Declined(
            "the run has no sizes of its collectives, so that a rate of the link says nothing about their time"
        )
    share = link_share(dfg, now.links, ProbedCollectives.of(now.run)).share[nodes]
    factor = np.ones(dfg.nodes)
    on_link = share * ns_per_byte(dfg, now.links, nodes)
    # All latency, none of it on the link: no rate changes such a collective.
    factor[nodes] = np.where(on_link > 0, on_link * rate.bytes_per_ns / bus_factors(dfg)[nodes], 1)
    return factor
