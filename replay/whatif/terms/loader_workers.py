"""`loader.workers=4`: another number of loader workers."""

from esprof.replay.whatif.term import Kind, Loading, whole

MAX_WORKERS = 1024

TERM = Kind(
    name="loader.workers",
    examples=("loader.workers=4", "rank3.loader.workers=4"),
    meaning="DataLoaders have this number of worker processes (`num_workers`); with 0 the ranks make their batches "
    "themselves. The batches of the whole run are delivered again, by the rules of the DataLoader.",
    needs="A DataLoader that `esprof record` recorded, and workers that waited for a CPU for at most a tenth of their time.",
    assumes="A worker makes a batch in the time that it took in this run. Passing it to the rank takes no longer than now.",
    effect=Loading(lambda batches, term: batches.with_workers(term.value)),
    value=whole(0, MAX_WORKERS),
    scoped=True,
)
