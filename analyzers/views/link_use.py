"""How much of the link's peak some collectives reach."""

from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.views.collectives import SteadyStateCollectives
from esprof.analyzers.views.links import LinkPeak, bus_factor, link_peak
from esprof.run.collective_names import collective_word


@dataclass(frozen=True)
class LinkUse:
    """The link of some collectives of one kind and group."""

    peak: LinkPeak
    factor: float
    """Bytes that each link carries for a byte of their size (`bus_factor`)."""

    def share(self, rate: float) -> float:
        """Share of the peak that a bandwidth of `rate` bytes/s (size / time) uses."""
        return rate * self.factor / self.peak.bytes_per_s

    def evidence(self, rates: dict[str, float]) -> dict[str, Evidence]:
        """The shares of the peak of these bandwidths, bytes/s, by what has them."""
        shares = {name: round(self.share(rate), 4) for name, rate in rates.items()}
        return {
            "share_of_link": Evidence(dict(shares), "share", "cause"),
            "peak_of_link": Evidence(f"{self.peak.bytes_per_s / 1e9:.0f} GB/s ({self.peak.source})"),
        }


def link_use(sent: SteadyStateCollectives, chosen: np.ndarray) -> LinkUse | None:
    """The link of the collectives of the mask `chosen`; None if they are of several kinds or groups, or it is unknown."""
    dfg = sent.dfg
    words = {collective_word(dfg.label(node)) for node in sent.node[chosen].tolist()}
    members = {
        tuple(sorted(dfg.rank[sent.node[dfg.collective[sent.node] == number]].tolist()))
        for number in np.unique(dfg.collective[sent.node[chosen]]).tolist()
    }
    if len(words) != 1 or len(members) != 1 or (word := words.pop()) is None:
        return None
    ranks = members.pop()
    peak, factor = link_peak(sent.replayed.run, ranks), bus_factor(word, len(ranks))
    return None if peak is None or factor is None else LinkUse(peak, factor)
