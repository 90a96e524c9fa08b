"""Padding of the batches of a run, and the work on it: what is proportional to tokens, and what to pairs of tokens."""

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from esprof.core.types import Rank
from esprof.replay.dfg import Cls, Dfg, LaneKind
from esprof.replay.whatif.graph.nested_operations import launching_operations, share_in
from esprof.run.run import Run
from esprof.run.schema import Table

_ON_PAIRS = r"attention|attn|aten::(b|baddb)mm$|aten::_softmax(_backward_data)?$"
"""Matches operations whose time is proportional to pairs of tokens: fused attention, and its products and softmax as
separate operations. The loss calls `aten::_log_softmax`."""

_NOT_ON_TOKENS = r"aten::\w+_$|AccumulateGrad|foreach|Optimizer|addcdiv|addcmul|lerp|sqrt|c10d|reducer|DataLoader"
"""Matches operations whose time is that of parameters or data: optimizers, which work in place, and the accumulation and
reduction of gradients."""

ON_PAIRS = re.compile(_ON_PAIRS)
ON_TOKENS = re.compile(rf"^(?!.*({_NOT_ON_TOKENS}|{_ON_PAIRS}))")
"""Matches all other operations of forward and backward pass: their time is proportional to tokens."""


@dataclass(frozen=True)
class Waste:
    """Shares of padding of a rank, in one step or over several."""

    of_tokens: float
    """1 - ΣL / (B·S) for B sequences of lengths L, padded to S."""
    of_pairs: float
    """1 - ΣL² / (B·S²); the share of tokens, which is never larger, where the lengths of single sequences are unknown."""


@dataclass(frozen=True)
class RankPadding:
    """Padding of the batches of a rank, in the steps where it is known. Arrays of int64, one entry a step."""

    step: np.ndarray
    tokens: np.ndarray
    padding: np.ndarray
    pairs: np.ndarray
    """0 where the lengths of single sequences are unknown."""
    padding_pairs: np.ndarray

    @classmethod
    def of(cls, steps: Table) -> "RankPadding | None":
        """The padding in a table of steps; None if no step has it."""
        columns = [steps.ints(name, -1) for name in ("step", "tokens", "padding", "pairs", "padding_pairs")]
        step, tokens, padding, pairs, padding_pairs = columns
        known = (tokens > 0) & (padding >= 0) & (padding < tokens)
        if not known.any():
            return None
        has_pairs = (pairs > 0) & (padding_pairs >= 0)
        pairs, padding_pairs = np.where(has_pairs, pairs, 0), np.where(has_pairs, padding_pairs, 0)
        return cls(*(column[known] for column in (step, tokens, padding, pairs, padding_pairs)))

    @property
    def waste(self) -> Waste:
        """Shares over all steps."""
        return _waste(*(int(column.sum()) for column in (self.tokens, self.padding, self.pairs, self.padding_pairs)))

    def by_step(self) -> dict[int, Waste]:
        """Shares of each step."""
        rows = zip(self.step, self.tokens, self.padding, self.pairs, self.padding_pairs, strict=True)
        return {int(step): _waste(*map(int, counts)) for step, *counts in rows}


def _waste(tokens: int, padding: int, pairs: int, padding_pairs: int) -> Waste:
    of_tokens = padding / tokens
    return Waste(of_tokens, padding_pairs / pairs if pairs else of_tokens)


def padding_by_rank(run: Run, ranks: Iterable[Rank]) -> dict[Rank, RankPadding]:
    """The padding of each of these ranks whose steps have it."""
    found = ((rank, RankPadding.of(run.steps(rank))) for rank in ranks)
    return {rank: padding for rank, padding in found if padding is not None}


def shares_on(run: Run, dfg: Dfg, names: re.Pattern[str]) -> np.ndarray:
    """Share of the time of each node that is spent in operations of these names, float64[N]: on CPU threads, without the
    operations that they call; of GPU work, whether one of them launched it."""
    share = share_in(run, dfg, names)
    is_kernel = dfg.on(LaneKind.STREAM) & dfg.of(Cls.COMPUTE) & (dfg.event >= 0)
    for rank in dfg.marks.ranks:
        nodes = dfg.nodes_of(rank)
        nodes = nodes[is_kernel[nodes]]
        if len(nodes):
            share[nodes] = _are_launched_by(run.events(rank), dfg.event[nodes], names)
    return share


def _are_launched_by(events: Table, kernels: np.ndarray, names: re.Pattern[str]) -> np.ndarray:
    """Whether the innermost operation around the launch of each kernel (row) has such a name, bool[kernels]."""
    operation = launching_operations(events, kernels)
    found: np.ndarray = (operation >= 0) & events.matches("name", names.search)[operation]
    return found
