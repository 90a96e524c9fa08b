"""`compress=powersgd:4`: compressed gradients."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from esprof.plan import Choice, read_plan
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
    """Number of each bucket -> its codec, by the plan of a file, whose buckets are in order. Raises Declined where it
    compresses none, or other ones, or in a way that was not measured."""
    part = read_plan(path).parts.compression
    if part is None:
        raise Declined(f"the plan {path} compresses no gradients")
    body = part.body
    choices: Sequence[Choice] = body.buckets or [body.default] * len(buckets.buckets)
    if any((one.exchange, one.encoded_by, one.topology) != (None, "backward", "flat") for one in choices):
        raise Declined("only each codec's usual exchange between all ranks was measured, encoded by the backward pass")
    if body.buckets and [one.elements for one in body.buckets] != [one.elements for one in buckets.buckets]:
        raise Declined("the plan is of other buckets than those of this run")
    return {number: choice.codec for number, choice in enumerate(choices)}


TERM = Kind(
    name="compress",
    examples=("compress=powersgd:4",),
    meaning="Gradients compressed by this codec, or as a plan says (`compress=plan.json`), by the communication hook of "
    "`esprof.elastic.compression`.",
    needs="A run of all ranks of DDP over gloo, recorded with `--shapes` and probed (`record --probe`).",
    effect=Edit(Phase.REBUILD, _compressed),
    value=text,
)
