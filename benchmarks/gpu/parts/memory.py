"""Memory: the peak that was recorded against the job's own, and what is held after each phase of a step."""

import json

import numpy as np

from benchmarks.gpu.kit import SKIP, Kit
from benchmarks.gpu.sizes import LARGE, size

MB = 1 << 20
PHASES = ("forward", "backward", "optimizer")
BEHIND = 200
"""Steps after the window: memory is sampled four times a second."""


def measure(kit: Kit) -> None:
    job = kit.job("train", *size(kit, LARGE))
    run = kit.record("memory", job, behind=BEHIND)
    of_rank = run.rank(0)
    assert of_rank.peak_memory is not None
    kit.show("recorded_peak", of_rank.peak_memory / MB, "MiB", of=of_rank.peak_memory_of)
    said = json.loads(kit.output([*job, "--steps", str(4 * SKIP)]).splitlines()[-1])
    real = said[kit.pick(cuda="peak_allocated", cpu="peak_rss")]
    kit.show(
        "recorded_peak_of_real",
        100 * of_rank.peak_memory / real,
        "% of the same job's, told by itself",
        real_mb=real // MB,
    )
    if of_rank.memory_limit is not None:
        kit.show("limit", of_rank.memory_limit / MB, "MiB")
    rows = run.memory(0)
    kit.show("memory_rows", len(rows), "samples")
    phases = np.array(rows.texts("phase"), object)
    for column in kit.pick(cuda=("allocated", "reserved"), cpu=("rss",)):
        for phase in PHASES:
            held = rows.ints(column)[phases == phase] / MB
            if len(held):
                kit.show(f"{column}_after_{phase}", held.tolist(), "MiB")
