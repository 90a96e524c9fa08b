"""`compress=powersgd:4`: compressed gradients."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from esprof.core.plan import CodecChoice, CompressionBody, read_plan
from esprof.replay.dfg import Dfg
from esprof.replay.whatif.gradients.backward import NotBuckets
from esprof.replay.whatif.gradients.compressed import Compressible, costs_of
from esprof.replay.whatif.gradients.shards import Shards
from esprof.replay.whatif.scenario import Declined, Scenario
from esprof.replay.whatif.term import Edit, Kind, Term, TermPhase, text


def _compressed(now: Scenario, terms: tuple[Term, ...]) -> Scenario:
    """Raises InputError where a plan is none."""
    value = terms[0].value
    plan = _body(Path(value)) if value.endswith(".json") else None
    try:
        shards = Shards.of(now.run, now.dfg)
        dfg, taken = _buckets(now, plan or value) if shards is None else _shards(shards, plan or value)
    except NotBuckets as reason:
        raise Declined(f"gradients cannot be compressed: {reason}") from reason
    return replace(now, dfg=dfg, taken_ns=taken)


def _body(path: Path) -> CompressionBody:
    section = read_plan(path).parts.compression
    if section is None:
        raise Declined(f"the plan {path} compresses no gradients")
    return section.body


def _shards(shards: Shards, how: str | CompressionBody) -> tuple[Dfg, np.ndarray]:
    """The result of `Shards.compressed`."""
    codec = how if isinstance(how, str) else how.sharded
    if isinstance(how, CompressionBody) and codec == "none":
        raise Declined("the plan compresses gradient buckets, but the gradients of this run are sharded")
    if codec not in ("none", "bf16"):
        raise Declined(f"sharded gradients can be sent as bf16 or uncompressed, not by {codec}")
    return shards.compressed(shards.costs if codec == "bf16" else [None] * len(shards.sizes))


def _buckets(now: Scenario, how: str | CompressionBody) -> tuple[Dfg, np.ndarray]:
    """The result of `Compressible.compressed`."""
    if isinstance(how, CompressionBody) and how.sharded != "none":
        raise Declined("the plan compresses sharded gradients, but the gradients of this run are not sharded")
    buckets = Compressible.of(now.run, now.dfg)
    codecs = how if isinstance(how, str) else _planned(how, buckets)
    return buckets.compressed(costs_of(buckets, codecs))


def _planned(body: CompressionBody, buckets: Compressible) -> dict[int, str]:
    """Number of each bucket -> its codec, by a plan, whose buckets are in order. Raises Declined where it compresses other
    ones, or in a way that was not measured."""
    choices: Sequence[CodecChoice] = body.buckets or [body.default] * len(buckets.buckets)
    if any((one.exchange, one.encoded_by, one.topology) != (None, "backward", "flat") for one in choices):
        raise Declined(
            "only the default exchange of each codec was measured: between all ranks, encoded in the backward pass"
        )
    if body.buckets and [one.elements for one in body.buckets] != [one.elements for one in buckets.buckets]:
        raise Declined("the plan has other buckets than this run")
    return {number: choice.codec for number, choice in enumerate(choices)}


TERM = Kind(
    name="compress",
    examples=("compress=powersgd:4",),
    meaning="The communication hook of `esprof.elastic.compress` compresses the gradients, with this codec or as a "
    "plan says (`compress=plan.json`). Gradients that FSDP2 reduces and scatters can be sent as `bf16` only.",
    needs="A run of all ranks of DDP or FSDP2 over gloo, recorded with `--shapes` and a probe (`record --probe`).",
    assumes="Encoding, exchange and decoding cost what the probe measured on this job.",
    effect=Edit(TermPhase.REBUILD, _compressed),
    value=text,
)
