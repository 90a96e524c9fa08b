"""`order=shuffle`: another order in which each pass reads its samples."""

from esprof.core.errors import UsageError
from esprof.replay.whatif.loading.batches import RecordedBatches
from esprof.replay.whatif.loading.orders import ReadOrder
from esprof.replay.whatif.term import Kind, Loading, Term, whole

_IS_SHUFFLED = {"shuffle": True, "sequential": False}

_MAX_BLOCK = 10**9


def _order(text: str) -> bool:
    if text not in _IS_SHUFFLED:
        raise UsageError(f"{text!r} is not an order", remedy=f"Known orders: {', '.join(_IS_SHUFFLED)}.")
    return _IS_SHUFFLED[text]


def _with_order(batches: RecordedBatches, term: Term) -> RecordedBatches:
    return batches.with_order(ReadOrder(term.value, None if term.argument is None else int(str(term.argument))))


TERM = Kind(
    name="order",
    examples=("order=shuffle", "order=sequential", "order[1000]=shuffle"),
    meaning="Each pass reads the same samples in another order, and so has other hits: in that of the data set "
    "(`sequential`), or in a random one (`shuffle`). In sequential order, reads of one sample follow each other. Brackets "
    "give the size of blocks of consecutive samples: blocks come in random order, and the samples of each block in the "
    "given one. The cache is that of a term `cache`, or the one that is there.",
    needs="As `storage`, and the keys of the samples of a map-style dataset (`esprof record --sample-keys`). Without a term "
    "`cache`, reads of which some were hits.",
    assumes="The order changes only the hits: sequential reads are not faster. The cache that is there is an LRU cache, "
    "whose size follows from its hits. A rank reads the samples that it reads now. Otherwise as `cache`.",
    effect=Loading(_with_order),
    value=_order,
    argument=whole(1, _MAX_BLOCK),
    argument_is_optional=True,
    scoped=True,
)
