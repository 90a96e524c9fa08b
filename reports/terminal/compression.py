"""What is recommended of gradient compression, as text for a terminal."""

from collections import Counter
from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from esprof.analyzers.advisors.compression.answer import CompressionAdvice
from esprof.analyzers.advisors.compression.instance import OPTIONS, InstanceAnswer
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline

_BASELINE_NAMES = {"now": "as it is", "zero cost": "free codecs (a bound)", "no exchange": "nothing sent (a bound)"}


def draw_instance(found: InstanceAnswer, screen: Screen = PLAIN) -> str:
    """How soon all tensors can be synchronised, and how many get which option."""
    rows = grid("option", "what is sent", ">tensors", padding=2)
    for option, count in sorted(Counter(found.choices).items()):
        rows.add_row(str(option), OPTIONS[option], f"{count:,}")
    title = headline(f"The last tensor is synchronised after {units.duration(found.value_us)}", screen)
    proof = "no choice is better" if found.gap_kind == "exact" else f"at most {units.pct(found.gap_pct)} above the best"
    return drawn(screen, title, Text(), rows, Text(), fact("Proof", proof, screen))


def draw_compression(advice: CompressionAdvice, screen: Screen = PLAIN) -> str:
    """What each bucket should be compressed by, what a step would take, and what it takes otherwise."""
    if advice.plan is None:
        title = "Keep what you have: no codec is sure to make a step shorter"
    else:
        title = f"A step would take {units.duration(advice.value)} instead of {units.duration(advice.baselines['now'])}"
    blocks: list[RenderableType] = [headline(title, screen), Text()]
    rows = grid(
        ">bucket",
        ">gradients",
        ">elements",
        "codec",
        ">encoding",
        ">on the link",
        ">decoding",
        ">each rank sends",
        "why",
        padding=2,
    )
    for number, one in enumerate(advice.decision):
        rows.add_row(
            str(number),
            str(len(one.elements)),
            f"{sum(one.elements):,}",
            one.codec,
            units.duration(one.begin_us),
            units.UNKNOWN if one.link_us is None else units.duration(one.link_us),
            units.duration(one.coding_us),
            units.UNKNOWN if one.sent_bytes is None else units.size(one.sent_bytes),
            one.reason,
        )
    steps = grid("codec for all", ">step", padding=2)
    for name, step in advice.baselines.items():
        steps.add_row(_BASELINE_NAMES.get(name, name), units.duration(step))
    each = {"all_reduce": "Buckets", "reduce_scatter": "Reduce-scatters", "ests": "ESTs"}[advice.collective]
    blocks += [heading(each), rows, Text(), heading("Else"), steps, Text()]
    return drawn(screen, *blocks, *_facts(advice, screen))


def _facts(advice: CompressionAdvice, screen: Screen) -> Iterable[Text]:
    interval = units.interval(advice.low_us, advice.high_us)
    yield fact("Range", f"{interval}; such predictions may be {units.pct(advice.error_pct)} of a step off", screen)
    yield fact(
        "Exposed", f"{units.duration(advice.exposed_us)} of a step are waited for gradients to be exchanged", screen
    )
    if advice.gain_over_16_bit_pct is not None:
        over = units.pct(advice.gain_over_16_bit_pct)
        yield fact("Gain", f"{units.pct(advice.gain_pct)} of a step; against 16-bit floats {over}", screen)
    if advice.vnmse:
        yield fact("Loss", f"{advice.vnmse:.2g} of the gradient's square, were all its numbers as large", screen)
    if advice.gap_kind == "exact":
        yield fact("Proof", "all choices were replayed: none is shorter", screen)
    else:
        yield fact("Proof", f"at most {units.pct(advice.gap_pct)} above the best: so far away is the bound", screen)
    if advice.bucket_mb is not None:
        yield fact("Buckets", f"of {advice.bucket_mb:g} MiB (bucket_cap_mb): the job has to start anew", screen)
    for codec, reason in advice.left_out.items():
        yield fact("Not", f"{codec}: {reason}", screen)
