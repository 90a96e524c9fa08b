"""How far an answer may be off: by how steps scatter, by what replay is known to be off on this run, and by how well changes
of its kind are modelled."""

from collections.abc import Iterable, Sequence

import numpy as np

from esprof.core.statistics import mean_margin

_ON_CPUS = {
    "assign": 0.18, "balance": 0.14, "bucket_mb": 0.07, "collective": 0.05, "communication": 0.08, "compress": 0.10,
    "cpu": 0.10, "data": 0.05, "kernel": 0.05, "network": 0.22, "overlap": 0.08, "python": 0.16, "straggler": 0.14,
}  # fmt: skip

MODEL_ERROR: dict[str, dict[str, float]] = {
    "gpu": {
        "allocator": 0.28, "balance": 0.03, "bucket_mb": 0.05, "collective": 0.02, "communication": 0.02, "cpu": 0.02,
        "data": 0.05, "gpu": 0.02, "host": 0.03, "kernel": 0.02, "network": 0.03, "overlap": 0.02, "straggler": 0.03,
        "streams": 0.02, "sync": 0.04,
    },
    "cpu": _ON_CPUS,
    "busy": _ON_CPUS | {"bucket_mb": 0.13, "compress": 0.19},
    "partial": {
        "collective": 0.06, "communication": 0.33, "cpu": 0.23, "data": 0.23, "gpu": 0.21, "host": 0.05, "kernel": 0.06,
        "network": 0.28, "overlap": 0.33, "straggler": 0.26,
    },
}  # fmt: skip
"""Share of a step by which the gain of a what-if was off in 19 of 20 answers whose truth is known, by class of job and name
of term: jobs that compute on GPUs, on CPUs, on CPUs that have little time left (`BUSY`), and those of which ranks are
missing. Of `python -m benchmarks.known --seed 1 --programs 180` ("known_model_error"); for jobs on CPUs, whose what-ifs
were carried out, too (docs/accuracy.md), the greater of both, and no less than 2 % (5 % on CPUs, and where ranks are
missing): the simulator leaves out what real machines do besides. `data=0` of a public pair of traces, without and with
workers, was 4.4 % of a step off: workers compete for the host. `bucket_mb` on GPUs is more than what `--class buckets`
shows, where a byte takes as long in whatever bucket. `sync=0` is of the programs 0 to 181, `streams=apart` of `--class
queue`. `python` on CPUs is what ESP402 was off by for the first set of planted faults ("diagnosis_model_error" of `python
-m benchmarks.diagnosis`, docs/planted-faults.md); `assign` what assignments that were carried out were off by (`python -m
benchmarks.assignments`, docs/advisors.md); `compress` more than what compressed gradients were (`python -m
benchmarks.compression --executed`, docs/compression.md). Of busy CPUs `bucket_mb` and `compress` have the greatest error
of the first set of `python -m benchmarks.verified`.
Terms that are not here have the greatest of their class."""

BUSY = 0.6
"""Share of a step that the ranks' own work takes of the CPUs that they have, from which on these are busy: transfers and
codecs then take their time from that work."""


def beyond_scatter(relative_error: float, seen: Sequence[float], unseen: Sequence[float]) -> float:
    """What of an error of the mean of `unseen` steps the scatter of steps does not explain, relative, never negative.

    `seen` are the durations on which the prediction rests, `unseen` those that it is held against, in one unit.
    """
    together = np.array([*seen, *unseen], float)
    scatter = mean_margin(together) * np.sqrt(len(together)) * np.sqrt(1 / len(seen) + 1 / len(unseen))
    return max(0.0, abs(relative_error) - float(scatter / np.mean(unseen)))


def model_error(job: str, terms: Iterable[str]) -> float:
    """The share of a step by which the gain of a scenario of these terms may be off, on this class of job
    (`MODEL_ERROR`)."""
    known = MODEL_ERROR[job]
    most = max(known.values())
    return float(np.sqrt(sum(known.get(term, most) ** 2 for term in set(terms))))
