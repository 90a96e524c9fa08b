"""`compress=powersgd:4`: compressed gradients."""

from dataclasses import replace
from pathlib import Path

from esprof.plan import CompressionBody, read_plan
from esprof.replay.whatif.backward import NotBuckets
from esprof.replay.whatif.compressed import Compressible, costs_of
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Phase, Term, text


def _compressed(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    """Raises InputError where a plan is none."""
    values = {term.value for term in terms}
    if len(values) > 1:
        raise Declined("gradients cannot be compressed in two ways at once")
    (value,) = values
    try:
        buckets = Compressible.of(now.run, now.dfg)
        codecs = _planned(Path(value), buckets) if value.endswith(".json") else value
        costs = costs_of(buckets, codecs)
    except NotBuckets as reason:
        raise Declined(f"gradients cannot be compressed: {reason}") from reason
    dfg, taken = buckets.compressed(costs)
    return replace(now, dfg=dfg, taken_ns=taken)


def _planned(path: Path, buckets: Compressible) -> dict[int, str]:
    """Number of each bucket -> its codec, by the plan of a file. Raises Declined where it compresses none or other ones."""
    part = read_plan(path).parts.compression
    if part is None:
        raise Declined(f"the plan {path} compresses no gradients")
    return by_bucket(part.body, buckets)


def by_bucket(body: CompressionBody, buckets: Compressible) -> dict[int, str]:
    """Number of each bucket -> its codec: those of a plan have the same sizes, in the order in which they become ready.
    Raises Declined where they are others."""
    if not body.buckets:
        return dict.fromkeys(range(len(buckets.buckets)), body.default.codec)
    if [choice.elements for choice in body.buckets] != [bucket.elements for bucket in buckets.buckets]:
        raise Declined("the plan is of other buckets than those of this run")
    return {choice.index: choice.codec for choice in body.buckets}


TERM = Kind(
    name="compress",
    examples=("compress=powersgd:4",),
    meaning="Gradients compressed by this codec, or as a plan says (`compress=plan.json`), by the communication hook of "
    "`esprof.elastic.compression`.",
    needs="A run of all ranks of DDP over gloo, recorded with `--shapes` and probed (`record --probe`).",
    effect=Edit(Phase.REBUILD, _compressed),
    value=text,
)
