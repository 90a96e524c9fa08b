"""`loader.prefetch=4`: another number of batches that each loader worker makes ahead."""

from esprof.replay.whatif.term import Kind, Loading, whole
from esprof.replay.whatif.terms.loader_workers import MAX_WORKERS

TERM = Kind(
    name="loader.prefetch",
    examples=("loader.prefetch=4",),
    meaning="Each loader worker makes this number of batches ahead (`prefetch_factor`).",
    needs="As `loader.workers`.",
    assumes="As `loader.workers`. The host has memory for the batches.",
    effect=Loading(lambda batches, term: batches.with_prefetch(term.value)),
    value=whole(1, MAX_WORKERS),
    scoped=True,
)
