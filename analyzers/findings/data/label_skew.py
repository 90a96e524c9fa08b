"""ESP112: ranks that train on other mixes of classes than chance explains."""

from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.findings.data.label_mixes import LabelMixes
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Cause, Page, Rule
from esprof.core import readable
from esprof.run.run import Run

MIN_EXCESS = 0.1
"""Distance beyond that by chance from which on a rank is reported: one sample in ten would need another class. Labels are
not independent where a sample has several, such as tokens or pixels, and chance then explains more than computed."""

MAX_CHANCE = 0.001
"""Significance level of the test that the mixes of the ranks differ."""

_BATCH_NORM = "aten::batch_norm"
"""Operation of BatchNorm with the statistics of one rank; SyncBatchNorm calls others."""


def label_skew(job: RecordedJob) -> Iterator[Cause]:
    """Ranks whose mix of classes differs from that of the job."""
    found = LabelMixes.of(job.run)
    if found is None or found.excess.max() < MIN_EXCESS or found.p_value > MAX_CHANCE:
        return
    worst, normalises = int(found.excess.argmax()), _normalises(job.run)
    rank, away = found.ranks[worst], found.mixes[worst] - found.mix
    most = int(np.abs(away).argmax())
    skewed = tuple(one for one, excess in zip(found.ranks, found.excess, strict=True) if excess >= MIN_EXCESS)
    yield Cause(
        id="ESP112",
        title=f"{readable.ranks(skewed)} {readable.verb('train', skewed)} on another mix of classes than the job: "
        f"{100 * found.distance[worst]:.0f} % of the samples of rank {rank} would need another class",
        ranks=skewed,
        confidence="high",
        severity="warning" if normalises else "info",
        evidence={
            "distance": by_rank(_shares(found, found.distance), "share"),
            "distance_by_chance": by_rank(_shares(found, found.by_chance), "share"),
            "p_value": Evidence(float(f"{found.p_value:.3g}")),
            "samples": by_rank({one: int(count) for one, count in zip(found.ranks, found.counts.sum(1), strict=True)}),
            "classes": Evidence(len(found.classes)),
            "most_unusual_class": Evidence(int(found.classes[most])),
            "its_share": by_rank(_shares(found, found.mixes[:, most]), "share"),
            "its_share_of_all": Evidence(round(float(found.mix[most]), 4), "share"),
            "has_batch_norm": Evidence(normalises),
        },
        advice=_advice(normalises),
    )


def _shares(found: LabelMixes, values: np.ndarray) -> dict[int, float]:
    return {rank: round(float(value), 4) for rank, value in zip(found.ranks, values, strict=True)}


def _normalises(run: Run) -> bool | None:
    """Whether a rank computes BatchNorm with statistics of its own; None if no operations were recorded."""
    tables = [events for rank in run.ranks if (events := run.recorded("events", rank)) is not None and len(events)]
    return any(_BATCH_NORM in events.codes("name")[1] for events in tables) if tables else None


def _advice(normalises: bool | None) -> str:
    mix = "Let each rank draw from all data, as `DistributedSampler(shuffle=True)` does."
    if normalises:
        return (
            f"{mix} If data cannot move, replace BatchNorm, which normalises with the statistics of a rank's own batch, "
            "by GroupNorm, or by SyncBatchNorm, which exchanges them."
        )
    return (
        f"{mix} While gradients are averaged in each step, their mean is right all the same. Models that are trained "
        "apart for several steps (`sync_every=`) differ: measure by how much with `esprof.ModelTravel`."
    )


_PAGES = (
    Page(
        "ESP112",
        "Ranks train on different mixes of classes",
        "Data that is sharded by source or sorted by class gives each rank another mix of classes. BatchNorm then "
        "normalises with statistics that fit no other rank, and what it learns for evaluation fits none. Models that "
        "ranks train apart, as with local SGD, drift apart (Hsieh et al., The Non-IID Data Quagmire, ICML 2020).",
        "The job passes the labels of each batch to `esprof.labels`. `distance` is the total variation distance of a "
        "rank's mix of classes from that of all ranks: the share of its samples that would need another class. `distance "
        "by chance` is its expectation if samples were on random ranks, and `p value` the probability that chance makes "
        "mixes differ so (χ² test). A rank is reported from a tenth beyond chance on. Labels of tokens or pixels of one "
        "sample are not independent: chance explains more there. `has batch norm` is whether the model calls BatchNorm "
        "with statistics of one rank.",
        "None: it costs accuracy, not time. Without BatchNorm, and with gradients averaged in each step, it may cost "
        "nothing.",
        "Draw samples from all data on each rank, or use GroupNorm or SyncBatchNorm.",
    ),
)

RULE = Rule(pages=_PAGES, of_job=label_skew)
