"""The terms of the search: which values a job can carry out, and the ideal of each term.

Without further wishes, these are settings of DataLoaders, DDP and pipelines, and measured codecs that lose no more than
allowed. Values that need memory, money or other code are searched only if the user offers them.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from enum import StrEnum
from itertools import groupby
from math import isnan

from esprof.analyzers.advisors.compression.sharded import share_lost
from esprof.analyzers.advisors.loader.advise import COUNTS, PREFETCH, WORKERS, JobLoaders
from esprof.analyzers.advisors.search.branch import SearchTerm, TermSet
from esprof.core.errors import EsprofError, UsageError
from esprof.replay.replayed import Replayed
from esprof.replay.schedules.recorded import SCHEDULES, NoPipeline, recorded_pipeline
from esprof.replay.whatif.gradients.backward import NotBuckets
from esprof.replay.whatif.gradients.compressed import Compressible
from esprof.replay.whatif.gradients.shards import Shards
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.scenario import Declined
from esprof.replay.whatif.term import Speed, Term

BUCKET_SIZE, CODEC = "bucket_mb", "compress"
_SIZES_MB = (1, 4, 25, 100)
"""Sizes of gradient buckets that are tried."""
_MOST_COUNTS = 6
"""Numbers of loader workers that are tried: the fewest ones, and the largest."""
_DEEPER = (2, 4)
"""Multiples of the present prefetch that are tried."""

_NO_COMMUNICATION, _NO_INPUT = "communication=0", "data[ready]=0"
_FASTEST = "1000000x"
_SHARED_IDEALS = {
    **dict.fromkeys(
        ("bucket_mb", "collective", "communication", "compress", "network", "network.cc", "overlap", "streams"),
        _NO_COMMUNICATION,
    ),
    **dict.fromkeys(
        (
            "cache",
            "data",
            "decode",
            "loader.in_order",
            "loader.prefetch",
            "loader.shared",
            "loader.workers",
            "order",
            "storage",
        ),
        _NO_INPUT,
    ),
}
_OWN_IDEALS = (
    "allocator",
    "barriers",
    "buffers",
    "compile",
    "launches",
    "loops",
    "padding",
    "python",
    "repeated_calls",
    "runqueue",
    "small_operations",
    "sync",
    "unused_gradients",
)
"""Terms of a single value, which only lets work take no time: the value is the ideal."""


class Revert(StrEnum):
    """What it takes to undo a change, the cheapest first."""

    ARGUMENT = "an argument"
    CODE = "code"
    RESULTS = "code, and changes the results of training"
    MACHINES = "machines"


_REVERTS = {
    **dict.fromkeys((PREFETCH, BUCKET_SIZE, WORKERS), Revert.ARGUMENT),
    **dict.fromkeys((CODEC, "double_precision", "loader.in_order", "order", "sparsity", "sync_every"), Revert.RESULTS),
    **dict.fromkeys(("network", "network.cc", "collective", "storage", "gpu", "cpu"), Revert.MACHINES),
}


def revert_of(value: str) -> Revert:
    """What it takes to undo a change, given as a term."""
    (term,) = parse(value)
    return _REVERTS.get(term.kind.name, Revert.CODE)


def terms_of(values: Iterable[str]) -> tuple[SearchTerm, ...]:
    """The terms of the search, from whole terms: those of one target are values of one term. Raises UsageError for a term
    after which a step does other work, and for what is no term."""
    read: dict[str, dict[str, Term]] = {}
    for value in values:
        for term in parse(value):
            read.setdefault(term.target, {}).setdefault(term.canonical, term)
    found = []
    for of_target in read.values():
        first = next(iter(of_target.values()))
        found.append(SearchTerm(_written(first), tuple(one.text for one in of_target.values()), _ideal(first)))
    return tuple(found)


def _written(term: Term) -> str:
    """The target of a term as it was written."""
    return term.text[: term.text.rfind("=", term.text.rfind("]") + 1)].strip()


def _ideal(term: Term) -> TermSet | None:
    """Terms that no value of the same target beats, whatever else changes; None if none are known. Raises UsageError for a
    term after which a step does other work."""
    if ideal := _SHARED_IDEALS.get(term.kind.name):
        return (ideal,)
    if isinstance(term.kind.effect, Speed):
        return (f"{_written(term)}={_FASTEST}",)
    if term.kind.name == "recompute":
        # Layers that are computed again only take time. A job has values of one kind only: it computes them again, or not.
        return () if term.value == "full" else (term.text,)
    if term.kind.name == "accumulate":
        return ()  # Each part takes what a call costs.
    if term.kind.name == "zero":
        return (term.text, _NO_COMMUNICATION)
    if term.kind.name == "batch":
        raise UsageError(
            f"{term.text!r} cannot be searched: a step of other batches does other work",
            remedy="Ask for its step with `esprof replay RUN --what-if`.",
        )
    return (term.text,) if term.kind.name in _OWN_IDEALS else None


def usual_values(replayed: Replayed, max_vnmse: float, left_out: dict[str, str]) -> list[str]:
    """Whole terms that this job can carry out by itself. Adds what is left out, with the reason, to `left_out`."""
    return [
        *_loader_values(replayed, left_out),
        *(f"{BUCKET_SIZE}={size}" for size in _SIZES_MB),
        *_codec_values(replayed, max_vnmse, left_out),
        *_pipeline_values(replayed),
    ]


def _loader_values(replayed: Replayed, left_out: dict[str, str]) -> Iterator[str]:
    try:
        loaders = JobLoaders.of(replayed)
    except EsprofError as error:
        left_out["loader"] = error.reason
        return
    now, most = loaders.now, loaders.most_workers
    fewer = [count for count in COUNTS if count < most and count != now.workers]
    workers = [*fewer[: _MOST_COUNTS - 1], *([most] if most != now.workers else [])]
    if not workers:
        left_out[WORKERS] = "there are CPUs for the present number only"
    yield from (f"{WORKERS}={count}" for count in workers)
    yield from (f"{PREFETCH}={factor * loaders.least_prefetch}" for factor in _DEEPER)


def _codec_values(replayed: Replayed, max_vnmse: float, left_out: dict[str, str]) -> Iterator[str]:
    """Measured codecs, each for all gradients, that lose at most `max_vnmse` of their square."""
    try:
        losses = _losses(replayed)
    except NotBuckets as reason:
        left_out[CODEC] = str(reason)
        return
    for codec, lost in losses.items():
        if isinstance(lost, NotBuckets):
            left_out[f"{CODEC}={codec}"] = str(lost)
        elif isnan(lost):
            left_out[f"{CODEC}={codec}"] = "its loss was not measured"
        elif lost <= max_vnmse:
            yield f"{CODEC}={codec}"
        else:
            left_out[f"{CODEC}={codec}"] = f"loses {lost:.2g} of the square of normal numbers, more than {max_vnmse:g}"


def _pipeline_values(replayed: Replayed) -> Iterator[str]:
    """Other schedules of a recorded pipeline, half and twice its microbatches; none of another job."""
    try:
        shape = recorded_pipeline(replayed.run, replayed.pricer.dfg).shape
    except NoPipeline:
        return
    yield from (f"pipeline={schedule}" for schedule in SCHEDULES if schedule != shape.schedule)
    yield from (f"microbatches={count}" for count in (shape.microbatches // 2, 2 * shape.microbatches) if count)


def _losses(replayed: Replayed) -> dict[str, float | NotBuckets]:
    """What each codec loses of the square of the gradient; NaN if unknown. Raises NotBuckets."""
    run, dfg = replayed.run, replayed.pricer.without_slowing
    if (shards := Shards.of(run, dfg)) is not None:
        return {"bf16": share_lost(shards.sizes, shards.costs)}
    buckets = Compressible.of(run, dfg)
    sizes = [bucket.nbytes for bucket in buckets.buckets]
    losses: dict[str, float | NotBuckets] = {}
    for codec in buckets.costs.codecs:
        try:
            losses[codec] = share_lost(sizes, [buckets.costs.cost(codec, size) for size in sizes])
        except NotBuckets as reason:
            losses[codec] = reason
    return losses


def priced(terms: Sequence[SearchTerm], replayed: Replayed, left_out: dict[str, str]) -> tuple[SearchTerm, ...]:
    """The terms with those values that have a price alone, if their ideal has one. Adds the others to `left_out`."""
    ideals = [",".join(term.ideal or ()) for term in terms]
    specs = [*filter(None, ideals), *(value for term in terms for value in term.values)]
    prices = zip(specs, replayed.pricer.prices(specs), strict=True)
    reasons = {spec: str(price) if isinstance(price, Declined) else None for spec, price in prices}
    found = []
    for term, ideal in zip(terms, ideals, strict=True):
        if (reason := reasons.get(ideal)) is not None:
            left_out[term.name] = reason
            continue
        for reason, values in groupby(
            sorted(term.values, key=lambda value: reasons[value] or ""), key=lambda value: reasons[value]
        ):
            declined = list(values)
            if reason is not None:
                left_out[term.name if len(declined) == len(term.values) else ", ".join(declined)] = reason
        if able := tuple(value for value in term.values if reasons[value] is None):
            found.append(replace(term, values=able))
    return tuple(found)
