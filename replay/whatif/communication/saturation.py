"""What bounds the steps of a scenario with links of a given rate, and from which rate on a faster link gains nothing."""

import math
from collections.abc import Callable

import msgspec

from esprof.core.readable import decimal
from esprof.replay.answer import LinkLimit, WhatIf
from esprof.replay.dfg import Cls
from esprof.replay.engine.timeline import Timeline, class_totals, steady_path
from esprof.replay.whatif.communication.rates import GBIT, Rate
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import Pricer
from esprof.replay.whatif.scenario import Declined

SATURATED = 1.01
"""A step of at most so many times that of `communication=0` is saturated: no faster link pays."""

_SLOWEST, _FASTEST = 1e6, 1e15
"""Rates between which the saturating one is sought, bits/s."""
_PRECISION = 1.05
"""Ratio of the rates between which the saturating one is known in the end."""
_WORDS = {Cls.DATA.label: "input data", Cls.CPU.label: "CPU work", Cls.HOST_GAP.label: "code between operations"}


def with_limit(pricer: Pricer, scenario: WhatIf) -> WhatIf:
    """A scenario with what bounds its steps, if it has links of a given rate; others as they are."""
    limit = _limit(pricer, scenario.spec) if scenario.answered else None
    if limit is None:
        return scenario
    note = "; ".join(filter(None, (scenario.note, _in_words(limit))))
    return msgspec.structs.replace(scenario, link=limit, note=note)


def _limit(pricer: Pricer, spec: str) -> LinkLimit | None:
    """What bounds the steps of a scenario with `network=RATE`; None for others, and if no ideal or no
    timeline is known."""
    terms = parse(spec)
    rates = [term for term in terms if isinstance(term.value, Rate)]
    if not rates:
        return None
    others = [term.text for term in terms if not isinstance(term.value, Rate)]

    def step_ns(*added: str) -> float:
        return float(pricer.price(",".join([*others, *added])).step_ns.mean())

    try:
        timeline = pricer.timeline(spec)
        enough = SATURATED * step_ns("communication=0")
        saturating = _saturating_rate(step_ns, enough)
        bound = _bound(pricer, timeline, step_ns, rates[0].text, enough)
    except Declined:
        return None
    return LinkLimit(bound=bound, saturating_bits_per_s=saturating)


def _in_words(limit: LinkLimit) -> str:
    if limit.saturating_bits_per_s is None:
        return f"bound by {limit.bound}; no rate brings steps within 1 % of communication=0"
    rate = decimal(limit.saturating_bits_per_s / GBIT)
    return f"bound by {limit.bound}; from {rate} Gbit/s on, steps are within 1 % of communication=0"


def _saturating_rate(step_ns: Callable[[str], float], enough: float) -> float | None:
    """The least rate, bits/s, at which a step takes at most `enough` ns, up to `_PRECISION`; None if there is none.

    Steps never get longer with a faster link, hence bisection.
    """
    low, high = _SLOWEST, _FASTEST
    if step_ns(_at(high)) > enough:
        return None
    while high > _PRECISION * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if step_ns(_at(middle)) <= enough else (middle, high)
    return high


def _at(bits_per_s: float) -> str:
    return f"network={bits_per_s / GBIT:.12g}Gbit"


def _bound(pricer: Pricer, timeline: Timeline, step_ns: Callable[..., float], rate: str, enough: float) -> str:
    """What bounds the steps at the rate of the term `rate`, in words; `timeline` is their replay."""
    now = step_ns(rate)
    if now > enough:
        is_link = now > SATURATED * step_ns(_at(_FASTEST))
        return "the link" if is_link else "latency and CPU work of collectives"
    if pricer.blame.slow_ranks and now > SATURATED * step_ns(rate, "straggler=fix"):
        return "slow ranks"
    path = steady_path(timeline, pricer.steady_at)
    totals = class_totals(path)
    largest = max(totals, key=lambda name: totals[name])
    return _WORDS.get(largest, largest)
