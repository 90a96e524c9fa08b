"""Links between the devices of a group: the bus bandwidth of collectives, what the link can carry, and its use."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np

from esprof.analyzers.evidence import Evidence
from esprof.analyzers.views.collectives import SteadyStateCollectives
from esprof.analyzers.views.device_peaks import peak_of
from esprof.core.types import NS_PER_S, Rank
from esprof.replay.dfg import Cls
from esprof.replay.whatif.communication.links import bus_factor
from esprof.run.collective_names import collective_word
from esprof.run.run import Run

PeakSource = Literal["probe", "data sheet"]


class LinkPeak(msgspec.Struct, frozen=True, kw_only=True):
    """The highest bus bandwidth of a group of ranks."""

    bytes_per_s: float
    source: PeakSource
    """`probe`: the highest that `esprof probe` measured. `data sheet`: all links of the device between GPUs of one host, in
    one direction; an upper limit, because boards without a switch give a pair of devices only some of their links."""


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


def link_peak(run: Run, ranks: Sequence[Rank]) -> LinkPeak | None:
    """The peak of the link between these ranks: measured, else of devices with direct links that share a host.

    None if unknown: without a probe, for several hosts, whose network no trace describes, for devices that may be linked
    by PCIe only, and if a rank is missing from the run.
    """
    probed = _probed(run, ranks)
    if probed is not None:
        return LinkPeak(bytes_per_s=probed, source="probe")
    if any(rank not in run.ranks for rank in ranks):
        return None
    peaks = {None if peak is None else peak.link for peak in (peak_of(run.rank(rank).device) for rank in ranks)}
    slowest = None if None in peaks else min((peak for peak in peaks if peak is not None), default=None)
    if slowest is None or not _share_host(run, ranks):
        return None
    return LinkPeak(bytes_per_s=slowest * 1e9, source="data sheet")


def link_use(sent: SteadyStateCollectives, chosen: np.ndarray) -> LinkUse | None:
    """The link of the collectives of the mask `chosen`; None if they are of several kinds or groups, or it is unknown."""
    dfg, of_job = sent.dfg, sent.replayed.pricer.dfg
    words = {collective_word(dfg.label(node)) for node in sent.node[chosen].tolist()}
    # Of a large run, `dfg` holds some of the ranks.
    all_sent = np.flatnonzero(
        of_job.of(Cls.COMMUNICATION) & np.isin(of_job.collective, dfg.collective[sent.node[chosen]])
    )
    members = {
        tuple(sorted(of_job.rank[all_sent[of_job.collective[all_sent] == number]].tolist()))
        for number in np.unique(of_job.collective[all_sent]).tolist()
    }
    if len(words) != 1 or len(members) != 1 or (word := words.pop()) is None:
        return None
    ranks = members.pop()
    peak, factor = link_peak(sent.replayed.run, ranks), bus_factor(word, len(ranks))
    return None if peak is None or factor is None else LinkUse(peak, factor)


def _share_host(run: Run, ranks: Sequence[Rank]) -> bool:
    """Whether these ranks run on one host. Where hosts are unknown, whether each uses a device of another number."""
    hosts = {run.rank(rank).host for rank in ranks}
    if hosts != {None}:
        return len(hosts) == 1
    devices = {int(run.events(rank).ints("device").max(initial=-1)) for rank in ranks}
    return len(devices) == len(ranks) and -1 not in devices


def _probed(run: Run, ranks: Sequence[Rank]) -> float | None:
    """Highest measured bus bandwidth of a collective of exactly these ranks, bytes/s; None if none was measured."""
    rates = [
        point.size / float(np.median(point.samples_ns)) * NS_PER_S * factor
        for sweep in (run.probes.sweeps if run.probes is not None else ())
        if (sweep.kind, sweep.beside, sweep.ranks) == ("collective", "", tuple(ranks))
        for point in sweep.points
        if (factor := bus_factor(sweep.name, len(ranks)))
    ]
    return max(rates, default=None)
