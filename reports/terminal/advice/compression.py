"""The recommendation of gradient compression, for a terminal."""

from collections import Counter
from collections.abc import Iterable

from rich.console import RenderableType
from rich.text import Text

from esprof.analyzers.advisors.compression.answer import CompressionAdvice
from esprof.analyzers.advisors.compression.instance import OPTIONS, InstanceAnswer
from esprof.reports import units
from esprof.reports.terminal.screen import PLAIN, Screen, drawn, fact, grid, heading, headline

_BASELINE_NAMES = {
    "now": "none (now)",
    "zero cost": "codecs at no cost (lower bound)",
    "no exchange": "no communication (lower bound)",
}


def draw_instance(found: InstanceAnswer, screen: Screen = PLAIN) -> str:
    """The time until all tensors are synchronised, and the number of tensors for each option."""
    rows = grid("option", "what is sent", ">tensors", padding=2)
    for option, count in sorted(Counter(found.choices).items()):
        rows.add_row(str(option), OPTIONS[option], f"{count:,}")
    title = headline(f"The last tensor is synchronised after {units.duration(found.value_us)}", screen)
    proof = "no choice is better" if found.gap_kind == "exact" else f"at most {units.pct(found.gap_pct)} above the best"
    return drawn(screen, title, Text(), rows, Text(), fact("Proof", proof, screen))


def draw_compression(advice: CompressionAdvice, screen: Screen = PLAIN) -> str:
    """The codec of each bucket, the predicted step, and the step with other choices."""
    if advice.plan is None:
        title = "No change recommended: no codec shortens a step significantly"
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
    blocks += [heading(each), rows, Text(), heading("Alternatives"), steps, Text()]
    return drawn(screen, *blocks, *_facts(advice, screen))


def _facts(advice: CompressionAdvice, screen: Screen) -> Iterable[Text]:
    interval = units.interval(advice.low_us, advice.high_us)
    yield fact("Range", f"{interval}; prediction error {units.pct(advice.error_pct)} of a step", screen)
    yield fact(
        "Exposed", f"{units.duration(advice.exposed_us)} of a step is exposed communication of gradients", screen
    )
    if advice.gain_over_16_bit_pct is not None:
        over = units.pct(advice.gain_over_16_bit_pct)
        yield fact("Gain", f"{units.pct(advice.gain_pct)} of a step; {over} compared with 16-bit floats", screen)
    if advice.vnmse:
        yield fact(
            "Loss",
            f"{advice.vnmse:.2g} squared error over the squared norm of the gradient, if all its values were equally large",
            screen,
        )
    if advice.gap_kind == "exact":
        yield fact("Proof", "all choices were replayed; none is shorter", screen)
    else:
        yield fact("Proof", f"at most {units.pct(advice.gap_pct)} above the lower bound", screen)
    if advice.bucket_mb is not None:
        yield fact("Buckets", f"{advice.bucket_mb:g} MiB (bucket_cap_mb); needs a restart of the job", screen)
    for codec, reason in advice.left_out.items():
        yield fact("Skipped", f"{codec}: {reason}", screen)
