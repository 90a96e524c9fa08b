"""A DDP job whose slow DataLoader hides its slow link: two ranks, steps of 96 ms that wait for batches of 150 ms."""

from collections.abc import Sequence

import msgspec
import numpy as np

from esprof.replay.whatif.loading.loader_queue import delivered
from esprof.run.probes import Sweep
from esprof.run.run import Run
from tests.cases.gloo_buckets import MS, ddp_step
from tests.cases.graph import EPOCH_NS, load_call, run_of, stage, step
from tests.cases.loading import MS as NS_PER_MS
from tests.cases.probed import link, probes
from tests.cases.step_runs import step_table

STEPS = 12
MIB = 1 << 20
LINK_NS_PER_BYTE = 20e6 / MIB
BUCKETS = (1, 1, 1, 1)


def masked_job(*sweeps: Sequence[Sweep], batch_ms: float = 150, cpus: int = 6) -> Run:
    """Gradients of 4 MiB become ready in 40 ms, and are on the link for 80 ms. One worker makes the batches of a rank.
    Both ranks are on one host of `cpus` CPUs."""
    of_step = ddp_step(BUCKETS, BUCKETS)
    ddp_ms = of_step[0].dur / MS
    took = np.full((1, STEPS), float(batch_ms))
    at = delivered(took, np.array([1]), np.array([2]), np.array([True]), np.full(STEPS, ddp_ms))[0].tolist()
    rows, stages, lengths = [], [], []
    for n in range(STEPS):
        begin = at[n - 1] + ddp_ms if n else 0.0
        rows += [step(n, begin * MS, (at[n] + ddp_ms) * MS), load_call(begin * MS, at[n] * MS)]
        rows += [msgspec.structs.replace(row, ts=row.ts + at[n] * MS) for row in of_step[1:]]
        lengths.append(at[n] + ddp_ms - begin)
        counted = {"cpu_ns": 10 * NS_PER_MS, "ready_ns": 0, "name": None, "read_bytes": None, "read_chars": None}
        stages.append(stage("next", n, begin * MS, at[n] * MS) | counted)
        stages.append(stage("fetch", n, (at[n] - batch_ms) * MS, at[n] * MS) | counted)
    steps = step_table([round(length) for length in lengths], start_ns=EPOCH_NS, phase="timed", first=0)
    ranks = (0, 1)
    run = run_of(
        dict.fromkeys(ranks, rows),
        stages=dict.fromkeys(ranks, stages),
        steps=dict.fromkeys(ranks, steps),
        cpus=dict.fromkeys(ranks, tuple(range(cpus))),
    )
    run.probes = probes(link(0, LINK_NS_PER_BYTE), *(one for sweep in sweeps for one in sweep))
    return run
