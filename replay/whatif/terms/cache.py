"""`cache=0.5`: a cache for the loader's reads."""

from esprof.core.errors import UsageError
from esprof.replay.whatif.loading.batches import RecordedBatches
from esprof.replay.whatif.loading.caches import ReadCache
from esprof.replay.whatif.loading.hit_rates import POLICIES
from esprof.replay.whatif.term import Kind, Loading, Term, share

_DEFAULT, _SAMPLES = "minio", "samples"
_ARGUMENTS = (*POLICIES, _SAMPLES)


def _argument(text: str) -> str:
    if text not in _ARGUMENTS:
        raise UsageError(f"{text!r} is not a kind of cache", remedy=f"Known kinds: {', '.join(_ARGUMENTS)}.")
    return text


def _with_cache(batches: RecordedBatches, term: Term) -> RecordedBatches:
    if term.argument == _SAMPLES:
        return batches.with_cache(ReadCache(_DEFAULT, term.value, holds_prepared=True))
    return batches.with_cache(ReadCache(str(term.argument or _DEFAULT), term.value))


TERM = Kind(
    name="cache",
    examples=("cache=0.5", "cache[lru]=0.5", "cache[samples]=0.5"),
    meaning="A cache in the memory of each host holds this share of the data set. Brackets name its kind: `minio` "
    "(default) never replaces an item, `lru` replaces the one that was not read for longest, `fifo` the one that it has "
    "held for longest. These hold what is read for a sample. `samples` holds samples as the data set returns them, as "
    "`esprof.data.MinIOCache` does: hits are neither read nor decoded, only collated. Hits are counted in the reads that "
    "`esprof record --sample-keys` noted. Without these, or if less than one pass remains once the cache is full, a formula "
    "gives the hits of data that each pass shuffles. The answer says which.",
    needs="As `storage`; `samples` as `loader.workers`.",
    assumes="By the formula: each pass reads each sample once, in random order. All samples have the same size. Reads that "
    "are hits take no time.",
    effect=Loading(_with_cache),
    value=share,
    argument=_argument,
    argument_is_optional=True,
    scoped=True,
)
