"""Pipelines: the order of stages and the number of micro-batches, from the messages between ranks."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from esprof.core.types import Ns, Rank
from esprof.replay.dfg import Cls, Dfg
from esprof.run.run import Run

_SEND = "send"

_MAX_PLACES = 1 << 20
"""More than a rank runs nodes of one name in a micro-batch."""


@dataclass(frozen=True)
class Pipeline:
    """The pipelines of a job, all of which have as many stages and micro-batches."""

    chains: tuple[tuple[Rank, ...], ...]
    """Ranks of each pipeline, from its first stage to its last."""
    micro_batches: int
    """Micro-batches that pass each pipeline in a step."""
    chunks: int
    """Parts of the model on each rank: more than one in interleaved schedules."""

    @property
    def stages(self) -> int:
        return len(self.chains[0])

    @property
    def bubble(self) -> float:
        """Share of a step in which a rank is idle, if all stages and micro-batches take the same time and messages none.

        (p - 1) / (v m + p - 1) for p stages, m micro-batches and v chunks, for GPipe, 1F1B and interleaved 1F1B (Narayanan
        et al., Efficient Large-Scale Language Model Training, SC 2021, section 2.2, there relative to the work).
        """
        return (self.stages - 1) / (self.chunks * self.micro_batches + self.stages - 1)


def pipeline_of(run: Run, dfg: Dfg, steps: Sequence[int]) -> Pipeline | None:
    """The pipelines of a job; None if its ranks do not form chains that pass as many messages in all of `steps`.

    With two stages, an interleaved schedule looks like one with more micro-batches.
    """
    edges = _edges(_messages(run, dfg, steps), len(steps))
    if not edges:
        return None
    after, before = dict(edges.keys()), {later: earlier for earlier, later in edges}
    if len(after) != len(edges) or len(before) != len(edges):
        return None  # A rank sends activations to several others.
    found = [_chain(ranks, edges) for ranks in _components(after, before)]
    shapes = {None if one is None else (len(one[0]), *one[1:]) for one in found}
    if len(shapes) != 1 or found[0] is None:
        return None
    return Pipeline(tuple(sorted(one[0] for one in found if one is not None)), *found[0][1:])


def _messages(run: Run, dfg: Dfg, steps: Sequence[int]) -> dict[tuple[Rank, Rank, int], list[Ns]]:
    """(sender, receiver, step) -> times at which matched messages were sent."""
    nodes = np.flatnonzero(
        dfg.of(Cls.COMMUNICATION) & (dfg.collective >= 0) & (dfg.event >= 0) & np.isin(dfg.step, steps)
    )
    sends, of_collective = dict[int, tuple[Rank, int, Ns]](), dict[int, set[Rank]]()
    for rank in dfg.marks.ranks:
        mine = nodes[dfg.rank[nodes] == rank]
        is_send = run.events(rank).matches("collective", _SEND.__eq__)[dfg.event[mine]]
        for node, sent in zip(mine.tolist(), is_send.tolist(), strict=True):
            number = int(dfg.collective[node])
            of_collective.setdefault(number, set()).add(rank)
            if sent:
                sends[number] = (rank, int(dfg.step[node]), int(dfg.recorded_ns[node]))
    found: dict[tuple[Rank, Rank, int], list[Ns]] = {}
    for number, (sender, step, sent_ns) in sends.items():
        others = of_collective[number] - {sender}
        if len(others) == 1:
            found.setdefault((sender, others.pop(), step), []).append(sent_ns)
    return found


def _edges(messages: Mapping[tuple[Rank, Rank, int], Sequence[Ns]], steps: int) -> dict[tuple[Rank, Rank], int]:
    """(earlier stage, later stage) -> activations in a step. Activations precede gradients, of which there are as many.

    Empty if their number differs between steps.
    """
    first, count = dict[tuple[Rank, Rank], Ns](), dict[tuple[Rank, Rank], set[int]]()
    in_steps = Counter((sender, receiver) for sender, receiver, _ in messages)
    for (sender, receiver, _), sent in messages.items():
        pair = sender, receiver
        first[pair] = min(first.get(pair, min(sent)), min(sent))
        count.setdefault(pair, set()).add(len(sent))
    edges = {}
    for pair, counts in count.items():
        back = pair[::-1]
        if back not in count or counts != count[back] or len(counts) != 1 or in_steps[pair] != steps:
            return {}
        if first[pair] < first[back]:
            edges[pair] = max(counts)
    return edges


def _components(after: Mapping[Rank, Rank], before: Mapping[Rank, Rank]) -> Iterator[list[Rank]]:
    """Ranks of each chain from its first stage, and of each ring from any."""
    rest = {*after, *before}
    while rest:
        begin = min(rest - before.keys(), default=min(rest))
        ranks = [begin]
        while (then := after.get(ranks[-1])) is not None and then != begin:
            ranks.append(then)
        rest -= {*ranks}
        yield ranks


def _chain(ranks: list[Rank], edges: Mapping[tuple[Rank, Rank], int]) -> tuple[tuple[Rank, ...], int, int] | None:
    """(ranks from the first stage, micro-batches, chunks); None if the numbers of messages do not fit together.

    In an interleaved schedule of v chunks the last stage sends activations to the first: (v - 1) m of v m.
    """
    counts = [edges[pair] for pair in pairwise(ranks)]
    closing = edges.get((ranks[-1], ranks[0])) if len(ranks) > 2 else None
    if closing is not None:
        least = min([*counts, closing])
        at = [*counts, closing].index(least) + 1
        ranks, counts = [*ranks[at:], *ranks[:at]], [one for one in [*counts, closing] if one != least]
        if len(counts) != len(ranks) - 1 or len({*counts}) != 1 or counts[0] % (counts[0] - least):
            return None  # A ring that passes as many messages everywhere is no pipeline.
        return tuple(ranks), counts[0] - least, counts[0] // (counts[0] - least)
    return (tuple(ranks), counts[0], 1) if len({*counts}) == 1 else None


@dataclass(frozen=True)
class MicroBatchWork:
    """Compute nodes that a rank runs once for each micro-batch, or as many times for each; arrays have an entry for each."""

    node: np.ndarray
    number: np.ndarray
    """Number of the micro-batch on its rank and in its step, in order of time."""
    same: np.ndarray
    """A number that nodes of the same work share: of one stage, step, lane role, name and place in the micro-batch. In
    graphs of some ranks it is the same if lanes and names have the numbers of the job."""


def micro_batch_work(dfg: Dfg, pipeline: Pipeline) -> MicroBatchWork:
    """The compute of the micro-batches. Work whose number of nodes is no multiple of that of micro-batches is left out."""
    stage = {rank: at for chain in pipeline.chains for at, rank in enumerate(chain)}
    nodes = np.flatnonzero(
        dfg.of(Cls.COMPUTE) & (dfg.step >= 0) & np.isin(dfg.rank, list(stage)) & (pipeline.chunks == 1)
    )
    nodes = nodes[np.argsort(dfg.recorded_ns[nodes], kind="stable")]
    roles = {role: number for number, role in enumerate(dict.fromkeys(lane.role for lane in dfg.lanes))}
    role = np.array([roles[lane.role] for lane in dfg.lanes] + [-1])[dfg.lane[nodes]]
    step = dfg.step[nodes].astype(np.int64) - dfg.marks.steps[0]
    kind = (step * len(roles) + role) * len(dfg.names) + dfg.name[nodes]
    occurrence, count = _occurrences(kind * (max(stage) + 1) + dfg.rank[nodes])
    fits = count % pipeline.micro_batches == 0
    node, each = nodes[fits], count[fits] // pipeline.micro_batches
    place = occurrence[fits] % each
    at_stage = np.array([stage.get(rank, -1) for rank in range(max(stage) + 1)])[dfg.rank[node]]
    same = (kind[fits] * pipeline.stages + at_stage) * _MAX_PLACES + place
    return MicroBatchWork(node, occurrence[fits] // each, same)


def _occurrences(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(earlier occurrences of each number, all occurrences of it)."""
    _, group, count = np.unique(numbers, return_inverse=True, return_counts=True)
    order = np.argsort(group, kind="stable")
    earlier = np.empty(len(numbers), np.int64)
    earlier[order] = np.arange(len(numbers)) - (np.cumsum(count) - count)[group[order]]
    return earlier, count[group]
