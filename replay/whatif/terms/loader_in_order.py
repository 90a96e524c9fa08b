"""`loader.in_order=0`: batches that are delivered as soon as one is made."""

from esprof.replay.whatif.term import Kind, Loading, zero

TERM = Kind(
    name="loader.in_order",
    examples=("loader.in_order=0",),
    meaning="DataLoaders deliver a batch as soon as any worker has made one (`in_order=False`): a slow batch does not hold "
    "up those behind it.",
    needs="As `loader.workers`, and at least two workers.",
    assumes="As `loader.workers`. The job does not depend on the order of its batches.",
    effect=Loading(lambda batches, term: batches.as_they_come()),
    value=zero,
    scoped=True,
)
