"""A job of one rank whose steps wait for batches of a DataLoader."""

import numpy as np

from esprof.replay.whatif.loading.loader_queue import delivered
from esprof.run.run import Run
from esprof.run.schema import ACCESSES, Table, table
from tests.cases.graph import EPOCH_NS, load_call, op, run_of, stage, step
from tests.cases.step_runs import step_table

MS = 1_000_000
STEPS = 24
COMPUTE_MS, BATCH_MS = 20.0, 60.0


def loading_job(
    workers: int = 1,
    cpu_ms: float = 15,
    ready_ms: float = 0,
    decode_ms: float = 0,
    scatter: float = 0,
    cpus: int | None = None,
    keys: np.ndarray | None = None,
    **reads,
) -> Run:
    """Steps of 20 ms, whose batches take 60 ms or scatter around that, `cpu_ms` of that on a CPU and the rest blocked.
    The rank has `cpus` CPUs, or that is unknown. Its samples have the `keys`, int64[N], as many in each batch."""
    took = BATCH_MS * np.random.default_rng(0).uniform(1 - scatter, 1 + scatter, (1, STEPS + 1))
    steps = np.full(STEPS + 1, COMPUTE_MS)
    at = delivered(took, np.array([workers]), np.array([2 * workers or 1]), np.array([True]), steps)[0].tolist()
    rows, stages, lengths = [], [], []
    for n in range(STEPS):
        begin = at[n - 1] + COMPUTE_MS if n else 0.0
        end = at[n] + COMPUTE_MS
        rows += [
            step(n, begin * 1000, end * 1000),
            load_call(begin * 1000, at[n] * 1000, worker=workers > 0),
            op("forward", at[n] * 1000 + 1, COMPUTE_MS * 1000 - 2),
        ]
        lengths.append(end - begin)
        counted = {"cpu_ns": round(cpu_ms * MS), "ready_ns": round(ready_ms * MS), "name": None, **reads}
        counted |= {"read_bytes": reads.get("read_bytes"), "read_chars": reads.get("read_chars")}
        taken = stage("next", n, begin * 1000, at[n] * 1000) | {"workers": workers} | counted
        made = stage("fetch", n, (at[n] - took[0, n]) * 1000, at[n] * 1000, worker=n % max(workers, 1)) | counted
        stages += [taken, made] if workers else [taken]
        if decode_ms:
            stages.append(made | {"kind": "part", "name": "decode", "cpu_ns": round(decode_ms * MS)})
    table_of_steps = step_table([round(length) for length in lengths], start_ns=EPOCH_NS, phase="timed", first=0)
    known = None if cpus is None else {0: tuple(range(cpus))}
    accesses = None if keys is None else {0: _accesses(keys)}
    return run_of({0: rows}, stages={0: stages}, steps={0: table_of_steps}, cpus=known, accesses=accesses)


def _accesses(keys: np.ndarray) -> Table:
    batch = np.repeat(np.arange(STEPS), len(keys) // STEPS)
    items = np.full(len(keys), len(np.unique(keys)))
    columns = {"loader": 0 * batch, "batch": batch, "start_ns": EPOCH_NS + batch, "key": keys, "items": items}
    return table(columns, ACCESSES)
