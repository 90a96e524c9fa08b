"""ESP701: padding tokens."""

import re
from collections.abc import Iterator

import numpy as np

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.rule import CERTAIN_SHARE, Case, Cause, Page, Rule
from esprof.core.types import Rank
from esprof.replay.whatif.graph.padded_tokens import RankPadding, padding_by_rank, shares_on

MIN_PADDING_SHARE = 0.1
"""Least share of padding that is reported: the sequences of a batch are seldom equally long."""

_BY_TOKENS = re.compile(r"aten::(b|add|badd)?mm$|attention|convolution|softmax|gelu|silu|layer_norm|lstm|gru")
"""Matches operations whose time is known to be proportional to the number of tokens."""

MIN_SHARE_BY_TOKENS = 0.05
"""Least share of the work of the steps in such operations: without them, nothing shows that the job computes on tokens."""

MIN_CERTAIN_SHARE_BY_TOKENS = 0.5
"""Least share of the work in such operations for which half of the saving is certain."""

_PACKS = "aten::_pack_padded_sequence"

_SCENARIO = "padding=0"


def padding(case: Case) -> Iterator[Cause]:
    """Batches with a large share of padding tokens."""
    padded = padding_by_rank(case.run, case.run.ranks)
    ranks = tuple(rank for rank, found in padded.items() if found.waste.of_tokens >= MIN_PADDING_SHARE)
    by_tokens = _share_by_tokens(case) if ranks else 0.0
    if by_tokens < MIN_SHARE_BY_TOKENS or any(_are_packed(case, rank) for rank in ranks):
        return
    if not case.is_worth_reporting(case.pricer.saving_ns(_SCENARIO)):
        return
    share = sum(int(one.padding.sum()) for one in padded.values()) / sum(
        int(one.tokens.sum()) for one in padded.values()
    )
    yield Cause(
        id="ESP701",
        title=f"{100 * share:.0f} % of the tokens are padding",
        ranks=ranks,
        scenario=_SCENARIO,
        certain_share=CERTAIN_SHARE if by_tokens >= MIN_CERTAIN_SHARE_BY_TOKENS else 0.0,
        # The share of padding is exact; which share of the step is proportional to tokens is uncertain.
        confidence="low",
        evidence=_evidence(padded, _have_one_length(case, ranks)),
        advice=_advice(_have_one_length(case, ranks)),
    )


def _share_by_tokens(case: Case) -> float:
    """Share of the work of steps in operations whose time is proportional to the number of tokens."""
    dfg = case.replayed.built.dfg
    work = np.isin(dfg.step, case.replayed.steps.steady) * dfg.dur_ns
    return float((shares_on(case.run, dfg, _BY_TOKENS) * work).sum()) / max(1.0, float(work.sum()))


def _are_packed(case: Case, rank: Rank) -> bool:
    """Whether the rank packs sequences before it computes (`torch.nn.utils.rnn.pack_padded_sequence`)."""
    return bool(case.run.events(rank).matches("name", lambda name: name == _PACKS).any())


def _have_one_length(case: Case, ranks: tuple[Rank, ...]) -> bool:
    """Whether each rank has only batches of one length. False where the number of samples is unknown."""
    for rank in ranks:
        steps = case.job.steps.table(rank)
        tokens, samples = steps.ints("tokens"), steps.ints("samples")
        known = (tokens > 0) & (samples > 0)
        if len(np.unique(tokens[known] / samples[known])) != 1:
            return False
    return True


def _evidence(padded: dict[Rank, RankPadding], one_length: bool) -> dict[str, Evidence]:
    return {
        "padding": by_rank({rank: round(one.waste.of_tokens, 4) for rank, one in padded.items()}, "share"),
        "padding_of_attention": by_rank(
            {rank: round(one.waste.of_pairs, 4) if one.pairs.any() else None for rank, one in padded.items()}, "share"
        ),
        "tokens_per_step": by_rank({rank: round(one.tokens.mean()) for rank, one in padded.items()}),
        "steps_with_counts": by_rank({rank: len(one.step) for rank, one in padded.items()}),
        "one_length_for_all": Evidence(one_length),
    }


def _advice(one_length: bool) -> str:
    first = (
        "Every batch is padded to the same length. Pad each batch to its longest sequence instead "
        "(padding='longest' in the tokenizer's collator), and batch sequences of similar length"
        if one_length
        else "Batch sequences of similar length (group_by_length), or pack several into one row"
    )
    return (
        f"{first}. Packing (torch.nn.attention.varlen, a document mask of FlexAttention, DataCollatorWithFlattening) leaves "
        "no padding, which is what the saving assumes. The loss then needs the weights of its sequences."
    )


_PAGES = (
    Page(
        "ESP701",
        "Padding tokens",
        "The sequences of a batch are padded to the length of the longest one, or to a fixed length. Compute spent on "
        "padding is wasted: linear layers waste the share of padding among the tokens, attention the larger share of pairs "
        "of tokens with padding.",
        "`padding` is the share of padding among all tokens, over all steps with these counts, and `padding of attention` "
        "that among the pairs of tokens of one sequence; `one length for all` says whether all batches have the same "
        "sequence length. The recorder reads batches in CPU memory when the DataLoader returns them. It counts what an "
        "`attention_mask` excludes, what lies beyond the lengths that a batch has with its sequences, or what a mask of "
        "another name excludes if the token ids there are all equal; else ends of token ids, or of frames of numbers, that "
        "equal one id, or zero, which occurs nowhere else, in sequences of different lengths. It also notes the lengths "
        "that a collate function gives to `pad_sequence`. Rows of several sequences, whose positions begin again, are "
        "packed already and count for nothing, and so does a job that calls `pack_padded_sequence`. Labels of -100 are not "
        "padding.",
        "`padding=0`: replay shortens the recorded time of attention by the share of pairs, and that of all other "
        "operations of forward and backward pass by that of tokens. An upper bound if passes also compute on other data. "
        "Half of it is certain if half of the work is known to depend on tokens.",
        "Pad each batch to its longest sequence, batch sequences of similar length, or pack sequences into rows.",
    ),
)

RULE = Rule(pages=_PAGES, of_case=padding)
