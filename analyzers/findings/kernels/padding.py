"""ESP701: padding tokens."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.types import Rank

MIN_PADDING_SHARE = 0.2
"""Least share of padding that is reported: the sequences of a batch are seldom equally long."""

_BY_TOKENS = r"aten::(add|b|badd)?mm$|attention|softmax|gelu|silu|layer_norm"
"""Matches CPU operations whose time is known to be proportional to the number of tokens."""

_PASSES = r"^(?!.*(aten::\w+_$|AccumulateGrad|foreach|Optimizer|addcdiv|addcmul|lerp|sqrt|c10d|reducer|DataLoader))"
"""Matches the CPU operations of forward and backward pass. Optimizers, which work in place, and the accumulation and
reduction of gradients are excluded."""


@dataclass(frozen=True)
class _Tokens:
    """Token counts of a rank, summed over the steps that have both counts."""

    steps: int
    total: int
    padding: int
    is_fixed: bool
    """Whether all batches have the same sequence length."""

    @property
    def share(self) -> float:
        return self.padding / self.total


def padding(case: Case) -> Iterator[Cause]:
    """Batches with a large share of padding tokens."""
    tokens_of = {rank: found for rank in case.run.ranks if (found := _tokens(case.job.steps, rank)) is not None}
    ranks = tuple(rank for rank, tokens in tokens_of.items() if tokens.share >= MIN_PADDING_SHARE)
    if not ranks:
        return
    share = sum(tokens.padding for tokens in tokens_of.values()) / sum(tokens.total for tokens in tokens_of.values())
    scenario = _scenario(case, 1 / (1 - share)) if 0 < share < 1 else None
    if scenario is None or not case.is_worth_reporting(case.pricer.saving_ns(scenario)):
        return
    yield Cause(
        id="ESP701",
        title=f"{100 * share:.0f} % of the tokens are padding",
        ranks=ranks,
        scenario=scenario,
        # The share of padding is exact; which share of the step is proportional to tokens is uncertain.
        confidence="low",
        evidence={
            "padding": by_rank({rank: round(tokens.share, 3) for rank, tokens in tokens_of.items()}, "share"),
            "tokens_per_step": by_rank(
                {rank: round(tokens.total / tokens.steps) for rank, tokens in tokens_of.items()}
            ),
            "steps_with_counts": by_rank({rank: tokens.steps for rank, tokens in tokens_of.items()}),
            "one_length_for_all": Evidence(all(tokens_of[rank].is_fixed for rank in ranks)),
        },
        advice=_advice(tokens_of, ranks),
    )


def _scenario(case: Case, factor: float) -> str:
    if case.replayed.built.dfg.has_gpu():
        return f"gpu={factor:.3g}x"
    proportional = f"kernel[{_BY_TOKENS}]={factor:.3g}x"
    if case.is_worth_reporting(case.pricer.saving_ns(proportional)):
        return f"kernel[{_PASSES}]={factor:.3g}x"
    return proportional


def _advice(tokens_of: dict[Rank, _Tokens], ranks: tuple[Rank, ...]) -> str:
    first = (
        "Every batch is padded to the same length. Pad each batch to its longest sequence instead "
        "(padding='longest' in the tokenizer's collator), and batch sequences of similar length"
        if all(tokens_of[rank].is_fixed for rank in ranks)
        else "Batch sequences of similar length (group_by_length), or pack several into one row"
    )
    return f"{first}. The saving is an upper bound: it assumes that compute time is proportional to tokens."


def _tokens(job: JobSteps, rank: Rank) -> _Tokens | None:
    """Token counts of a rank; None if no step has counts of both tokens and padding."""
    steps = job.table(rank)
    tokens, padded, samples = (steps.ints(column) for column in ("tokens", "padding", "samples"))
    known = (tokens > 0) & (padded >= 0)
    if not known.any():
        return None
    lengths = np.unique(tokens[known & (samples > 0)] / samples[known & (samples > 0)])
    return _Tokens(int(known.sum()), int(tokens[known].sum()), int(padded[known].sum()), len(lengths) == 1)


_PAGES = (
    Page(
        "ESP701",
        "Padding tokens",
        "The sequences of a batch are padded to the length of the longest one, or to a fixed length. Compute spent on "
        "padding is wasted.",
        "`padding` is the share of tokens that the batches' attention masks exclude, over all steps with these counts; "
        "`one length for all` says whether all batches have the same sequence length. Only recorded runs have these "
        "counts, and only if batches have an `attention_mask` in CPU memory when the DataLoader returns them.",
        "An upper bound. On GPUs `gpu=`: all GPU work is sped up by the ratio of all tokens to tokens without "
        "padding. On CPUs `kernel[…]=`: the same for all operations of the forward and backward pass, if speeding "
        "up matrix multiplication, attention and normalisation alone already saves something.",
        "Pad each batch to its longest sequence, batch sequences of similar length, or pack sequences into rows.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=padding)
