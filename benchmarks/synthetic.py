"""A job made up for measuring the engine: its size is free, its shape that of data-parallel training on GPUs."""

from dataclasses import replace

import numpy as np

from esprof.replay.dfg import Cls, Dfg, Edge, Lane, LaneKind, StepMarks
from esprof.replay.engine import longest_path

KERNELS = 8
"""Kernels of a worker between two collectives."""
_QUEUE = 4
"""How many kernels a CPU may be ahead of its GPU."""
_LAUNCH_NS = 4_000


def job(nodes: int, workers: int, *, queues: bool = True) -> Dfg:
    """About `nodes` nodes, 2.1 edges each: every worker launches kernels, and all meet in a collective after `KERNELS` of
    them, on two links alternately. A GPU waits for the collective before the last.

    Without `queues`, the edges that order GPUs and links are left out for a scheduler to find again.
    """
    # A block is a line of launches and one of kernels, a node a worker, KERNELS times; then the join, and a line of
    # transfers. Ids stand in such lines, so that a shifted slice ties each line to a later one.
    size = 2 * KERNELS * workers + 1 + workers
    blocks = max(2, nodes // size)
    begin = size * np.arange(blocks)[:, None]
    rows = begin[:, None] + 2 * workers * np.arange(KERNELS)[:, None] + np.arange(workers)
    launch, kernel = rows.reshape(-1, workers), rows.reshape(-1, workers) + workers
    join = begin + 2 * KERNELS * workers
    transfer = join + 1 + np.arange(workers)
    links = [
        (launch[:-1], launch[1:], Edge.LANE),
        (launch, kernel, Edge.LAUNCH),
        (kernel[:-_QUEUE], launch[_QUEUE:], Edge.SYNC),
        (kernel[KERNELS - 1 :: KERNELS], join, Edge.RENDEZVOUS),
        (join, transfer, Edge.RENDEZVOUS),
        (transfer[:-1], kernel[KERNELS::KERNELS], Edge.WAIT),
    ]
    if queues:
        links += [(kernel[:-1], kernel[1:], Edge.LANE), (transfer[:-2], transfer[2:], Edge.LANE)]
    lane = np.full(size * blocks, -1, np.int32)
    lane[launch], lane[kernel] = 4 * np.arange(workers), 4 * np.arange(workers) + 1
    lane[transfer] = 4 * np.arange(workers) + 2 + np.arange(blocks)[:, None] % 2
    cls = np.full(len(lane), Cls.WAIT, np.int8)
    cls[launch], cls[kernel], cls[transfer] = Cls.CPU, Cls.COMPUTE, Cls.COMMUNICATION
    rng = np.random.default_rng(0)
    dur = np.zeros(len(lane), np.int64)
    dur[launch] = rng.integers(3_000, 9_000, launch.shape)
    dur[kernel] = rng.integers(2_000, 60_000, kernel.shape)
    dur[transfer] = rng.integers(50_000, 400_000, join.shape)
    return _dfg(dur, lane, cls, links, workers)


def _dfg(
    dur: np.ndarray, lane: np.ndarray, cls: np.ndarray, links: list[tuple[np.ndarray, np.ndarray, Edge]], workers: int
) -> Dfg:
    """The graph of these nodes and links, with recorded starts as replay gives them."""
    nodes = len(dur)
    # Each link ties arrays of ids, or one id to many: brought to one shape, they are edges.
    pairs = [np.broadcast_arrays(source, target) for source, target, _ in links]
    source = np.concatenate([pair[0].ravel().astype(np.int32) for pair in pairs])
    target = np.concatenate([pair[1].ravel().astype(np.int32) for pair in pairs])
    kind = np.concatenate([np.full(pair[0].size, link[2], np.int8) for pair, link in zip(pairs, links, strict=True)])
    # By target, then source: how many edges enter each node, summed up, are the CSR offsets.
    order = np.lexsort((source, target))
    kind = kind[order]
    zeros, none = np.zeros(nodes, np.int64), np.full(nodes, -1, np.int32)
    columns = {
        "dur_ns": dur,
        "residual_ns": zeros,
        "recorded_ns": zeros,
        "contended": np.zeros(nodes, bool),
        "lane": lane,
        "step": np.zeros(nodes, np.int32),
        "cls": cls,
        "name": np.zeros(nodes, np.int32),
        "event": none,
        "collective": none,
        "bytes": zeros,
        "key": none,
        "pred_ptr": np.r_[0, np.cumsum(np.bincount(target, minlength=nodes))].astype(np.int32),
        "pred_idx": source[order],
        "pred_lag": np.where(kind == Edge.LAUNCH, _LAUNCH_NS, 0).astype(np.int32),
        "pred_kind": kind,
    }
    kinds = (LaneKind.CPU, LaneKind.STREAM, LaneKind.COMM, LaneKind.COMM)
    dfg = Dfg(
        t0_ns=0,
        names=("node",),
        lanes=tuple(Lane(worker, kind, str(number)) for worker in range(workers) for number, kind in enumerate(kinds)),
        marks=StepMarks((0,), (0,), np.array([[0]]), np.array([[nodes - 1]])),
        **columns,
    )
    return replace(dfg, recorded_ns=longest_path.run(dfg, dfg.dur_ns, dfg.residual_ns)[0])
