"""`cache=0.5`: a cache for the loader's reads."""

from esprof.core.errors import UsageError
from esprof.replay.whatif.loading.batches import RecordedBatches
from esprof.replay.whatif.loading.hit_rates import POLICIES
from esprof.replay.whatif.term import Kind, Loading, Term, share

_DEFAULT = "minio"


def _policy(text: str) -> str:
    if text not in POLICIES:
        raise UsageError(f"{text!r} is not a cache policy", remedy=f"Known policies: {', '.join(POLICIES)}.")
    return text


def _with_cache(batches: RecordedBatches, term: Term) -> RecordedBatches:
    return batches.with_cache(term.value, str(term.argument or _DEFAULT))


TERM = Kind(
    name="cache",
    examples=("cache=0.5", "cache[lru]=0.5"),
    meaning="A cache in memory holds this share of the data set. Brackets name its policy: `minio` (default) never replaces "
    "an item, `lru` replaces the one that was not read for longest, `fifo` the one that it has held for longest.",
    needs="As `storage`.",
    assumes="Each epoch reads each item once, in random order. Reads that are hits take no time.",
    effect=Loading(_with_cache),
    value=share,
    argument=_policy,
    argument_is_optional=True,
    scoped=True,
)
