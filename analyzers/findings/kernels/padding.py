"""ESP701: tokens that only pad their sequences."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import Case, Cause, Page, Rule
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.types import Rank

MIN_PADDING_SHARE = 0.2
"""Share of padding from which on it counts: sequences of one batch are never all as long."""

_BY_TOKENS = r"aten::(add|b|badd)?mm$|attention|softmax|gelu|silu|layer_norm"
"""Finds the operations of a job on CPUs that surely take as long as it has tokens."""

_PASSES = r"^(?!.*(aten::\w+_$|AccumulateGrad|foreach|Optimizer|addcdiv|addcmul|lerp|sqrt|c10d|reducer|DataLoader))"
"""Finds all that forward and backward pass do on CPUs: neither optimizers, which work in place, nor what gathers and sends
gradients."""


@dataclass(frozen=True)
class _Tokens:
    """What the steps of a rank that tell it took in all, and how many of these only pad."""

    steps: int
    all: int
    padding: int
    is_fixed: bool
    """Whether all sequences have the same length, whatever is in them."""

    @property
    def share(self) -> float:
        return self.padding / self.all


def padding(case: Case) -> Iterator[Cause]:
    """Batches whose tokens only pad, for a good part."""
    taken = {rank: found for rank in case.run.ranks if (found := _tokens(case.job.steps, rank)) is not None}
    ranks = tuple(rank for rank, tokens in taken.items() if tokens.share >= MIN_PADDING_SHARE)
    if not ranks:
        return
    share = sum(tokens.padding for tokens in taken.values()) / sum(tokens.all for tokens in taken.values())
    scenario = _scenario(case, 1 / (1 - share)) if 0 < share < 1 else None
    if scenario is None or not case.worth_naming(case.pricer.saving_ns(scenario)):
        return
    yield Cause(
        id="ESP701",
        title=f"{100 * share:.0f} % of the tokens are padding",
        ranks=ranks,
        scenario=scenario,
        # How much is padding is sure, what of the step is proportional to tokens is not.
        confidence="low",
        evidence={
            "padding": by_rank({rank: round(tokens.share, 3) for rank, tokens in taken.items()}, "share"),
            "tokens_per_step": by_rank({rank: round(tokens.all / tokens.steps) for rank, tokens in taken.items()}),
            "steps_told": by_rank({rank: tokens.steps for rank, tokens in taken.items()}),
            "one_length_for_all": Evidence(all(taken[rank].is_fixed for rank in ranks)),
        },
        advice=_advice(taken, ranks),
    )


def _scenario(case: Case, factor: float) -> str:
    if case.replayed.built.dfg.has_gpu():
        return f"gpu={factor:.3g}x"
    surely = f"kernel[{_BY_TOKENS}]={factor:.3g}x"
    return f"kernel[{_PASSES}]={factor:.3g}x" if case.worth_naming(case.pricer.saving_ns(surely)) else surely


def _advice(taken: dict[Rank, _Tokens], ranks: tuple[Rank, ...]) -> str:
    first = (
        "Every batch is padded to the same length: pad each to its longest sequence instead (padding='longest' of the "
        "tokenizer's collator), and put sequences of like length into one batch"
        if all(taken[rank].is_fixed for rank in ranks)
        else "Put sequences of like length into one batch (group_by_length), or several into one row (packing)"
    )
    return f"{first}. The saving is a bound: all computing without the share that is padding."


def _tokens(job: JobSteps, rank: Rank) -> _Tokens | None:
    """Of the steps that tell both; None where none does."""
    steps = job.table(rank)
    tokens, padded, samples = (steps.ints(column) for column in ("tokens", "padding", "samples"))
    told = (tokens > 0) & (padded >= 0)
    if not told.any():
        return None
    lengths = np.unique(tokens[told & (samples > 0)] / samples[told & (samples > 0)])
    return _Tokens(int(told.sum()), int(tokens[told].sum()), int(padded[told].sum()), len(lengths) == 1)


_PAGES = (
    Page(
        "ESP701",
        "Tokens that are padding",
        "Sequences of one batch are filled up to the length of the longest, or of the longest that there may be. What is "
        "computed for the filling is thrown away.",
        "`padding` is the share of tokens that the attention mask of the batches leaves out, over all steps that tell "
        "it; `one_length_for_all` whether all batches have sequences of one length. Recorded runs alone tell it, of "
        "batches that have an `attention_mask` in the CPU's memory when the DataLoader hands them over.",
        "A bound: `gpu=` with all work on GPUs as much faster as tokens would be fewer; on CPUs `kernel[…]=` with all that "
        "forward and backward pass do, where multiplications, attention and norms alone gain something.",
        "Padding to the longest sequence of each batch, batches of like length, sequences packed into rows.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=padding)
