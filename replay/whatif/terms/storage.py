"""`storage=2x`: storage that answers faster."""

from esprof.replay.whatif.term import Kind, Loading, speed_up

TERM = Kind(
    name="storage",
    examples=("storage=2x",),
    meaning="Storage answers DataLoaders faster by this factor: time in which the making of a batch is blocked shrinks.",
    needs="As `loader.workers`, and batches whose making is blocked.",
    assumes="Whatever blocks the making of a batch is a read. Locks and sleeps count as reads.",
    effect=Loading(lambda batches, term: batches.with_storage(term.value)),
    value=speed_up,
    scoped=True,
)
