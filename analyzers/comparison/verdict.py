"""The verdict on two runs in one or two sentences: the largest change beyond noise, its place and its size."""

from collections.abc import Sequence

from esprof.analyzers.comparison.answer import (
    BEYOND_RECORDING,
    SLOW_STEPS,
    CodeChange,
    CollectiveChange,
    OperatorChange,
    PartChange,
    PlaceChange,
    RunComparison,
    SaveChange,
    TimeChange,
    WaitChange,
)
from esprof.analyzers.comparison.parts import OTHERS
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import ns
from esprof.replay.dfg import Cls

MEANING = {
    Cls.COMPUTE.label: "compute",
    Cls.COMMUNICATION.label: "exposed communication",
    Cls.WAIT.label: "waiting for a late rank",
    Cls.CPU.label: "CPU work",
    Cls.HOST_GAP.label: "code between operations",
    Cls.DATA.label: "waiting for input",
    Cls.LAUNCH.label: "launches",
    Cls.ALLOCATOR.label: "memory allocation",
    Cls.CONTENTION.label: "a busy device",
    Cls.RESIDUAL.label: "unexplained time",
    Cls.COPY.label: "copies between host and device",
    BEYOND_RECORDING: "steps that were not recorded",
    SLOW_STEPS: "slow steps",
}
"""Parts of a change in words."""

MAX_NAMED = 3
"""Most parts named in a verdict."""

MIN_SHARE_OF_CHANGE = 0.1
"""Least share of the change of a step of a part that is named."""

MAX_PCT_OF_MACHINES = 15.0
"""Largest change of all operations alike that another load of the machine may explain: runs of one job differ by it."""

SLOW_STEP_FINDINGS = ("ESP6", "ESP80")
"""Beginnings of the ids of findings about single slow steps."""

MIN_SHARE_OF_PART = 0.5
"""Least share of the change of a part that its place must have to be named."""


def verdict_of(found: RunComparison) -> str:
    step = found.step
    beyond = [part for part in found.parts if not part.noise]
    waited = _waited(found)
    if waited and (_is_all_waiting(found) or not _explaining(found)):
        return (
            f"A step takes {_size(step)} {_times(found)}, but waits {_size(waited)} for a CPU, which other processes may "
            "have used: compare again on an idle machine."
        )
    also = f" It also waits {_size(waited)} for a CPU, which other processes may have used." if waited else ""
    if not step.noise:
        return f"A step takes {_size(step)} {_times(found)}{_why(found)}{_rank(found)}.{also}"
    if beyond:
        parts = _named(found, beyond)
        times = _times(found)
        return f"The duration of a step does not differ beyond noise {times}, but its parts do: {parts}{_rank(found)}."
    sure = [_calls(one) for one in found.collectives if one.is_unlike]
    unlike = f" The number or size of collectives differs: {', '.join(sure)}." if sure else ""
    return f"Nothing differs beyond noise {_times(found)}.{_sensitivity(found)}{unlike}"


def _waited(found: RunComparison) -> WaitChange | None:
    """The wait for a CPU, if it explains most of the change."""
    change = found.step.change_us
    for wait in found.waits:
        explains = wait.name == "cpu_wait" and wait.change_us * change >= MIN_SHARE_OF_PART * change**2
        if explains and not (wait.noise or found.step.noise):
            return wait
    return None


def _is_all_waiting(found: RunComparison) -> bool:
    """Whether a step without its waits for a CPU does not change as the step does, beyond noise."""
    rest = found.without_cpu_wait
    return rest is None or rest.noise or rest.change_us * found.step.change_us < 0


def _size(step: TimeChange) -> str:
    return f"{readable.duration(abs(ns(step.change_us)))} {'more' if step.change_us > 0 else 'less'}"


def _times(found: RunComparison) -> str:
    step = found.step
    before, after = (readable.duration(ns(us)) for us in (step.before_us, step.after_us))
    return f"({before} → {after}, {step.pct:+.1f} %)".replace("-", "−")


def _sensitivity(found: RunComparison) -> str:
    """How small a change would have been found."""
    least = found.step.detectable_us
    if least is None:
        return " One run has a single step: how much steps scatter is unknown."
    return f" A change of {readable.duration(ns(least))} ({100 * least / found.step.before_us:.1f} %) would have been found."


def _explaining(found: RunComparison) -> list[PartChange]:
    """The parts beyond noise that explain at least `MIN_SHARE_OF_CHANGE` of the change of the step."""
    change = found.step.change_us
    return [
        part for part in found.parts if not part.noise and part.change_us * change >= MIN_SHARE_OF_CHANGE * change**2
    ]


def _why(found: RunComparison) -> str:
    """The parts that explain the change."""
    if explaining := _explaining(found):
        return f": {_named(found, sorted(explaining, key=_as_a_machine_does))}"
    if not found.parts:
        return ""
    most = max(found.parts, key=lambda part: part.change_us * found.step.change_us)
    return f". None of its large parts differs beyond noise; the largest is {part_text(found, most)}"


def _as_a_machine_does(part: PartChange) -> bool:
    """Whether all places of a part change alike, by no more than machines and their load differ."""
    return part.alike_pct is not None and abs(part.alike_pct) <= MAX_PCT_OF_MACHINES


def _named(found: RunComparison, some: Sequence[PartChange]) -> str:
    return "; ".join(part_text(found, part) for part in some[:MAX_NAMED])


def _rank(found: RunComparison) -> str:
    """The rank that alone explains most of the change."""
    alone = [one for one in found.ranks if one.alone]
    most = max((abs(part.change_us) for part in found.parts if not part.noise), default=0.0)
    if not alone or abs(alone[0].change_us) < MIN_SHARE_OF_PART * most:
        return ""
    return f". Rank {alone[0].rank} alone has {'more' if alone[0].change_us > 0 else 'less'} work of its own"


def part_text(found: RunComparison, part: PartChange) -> str:
    """`+19.0 ms exposed communication, all_reduce (4 → 9 a step)`."""
    place = _place(part)
    if _as_a_machine_does(part):
        pace = "slower" if part.change_us > 0 else "faster"
        return f"{signed(part)} {MEANING[part.name]}, spread over all operations alike as on a {pace} machine"
    text = f"{signed(part)} {MEANING.get(part.name, part.name)}"
    if part.name == BEYOND_RECORDING:
        return text + _elsewhere(found, part)
    if part.name == SLOW_STEPS:
        return text + _slow_why(found)
    if place is None:
        return text
    return f"{text}, {printable(place.line or place.name, LONGEST_NAME)}{_more(found, part, place)}"


def signed(change: TimeChange) -> str:
    sign = "+" if change.change_us >= 0 else "−"
    return f"{sign}{readable.duration(abs(ns(change.change_us)))}"


def _place(part: PartChange) -> PlaceChange | None:
    """The place with most of the change of a part."""
    alike = [place for place in part.places if place.name != OTHERS and place.change_us * part.change_us > 0]
    most = max(alike, key=lambda place: abs(place.change_us), default=None)
    if most is None or abs(most.change_us) < MIN_SHARE_OF_PART * abs(part.change_us):
        return None
    return most


def _more(found: RunComparison, part: PartChange, place: PlaceChange) -> str:
    """Calls and sizes that differ at a place, and the module that holds it."""
    if part.name == Cls.COMMUNICATION.label:
        return next(
            (f" ({_sizes(one)})" for one in found.collectives if one.collective == place.name and one.is_unlike), ""
        )
    calls = next(
        (one for one in found.operators if one.kind != "module" and one.name == place.name and _is_unlike(one)), None
    )
    module = _module(found, part)
    return (f" in {printable(module.name, LONGEST_NAME)}" if module else "") + (
        f" ({_number(calls.calls_before)} → {_number(calls.calls_after)} a step)" if calls else ""
    )


def _is_unlike(one: OperatorChange) -> bool:
    return _number(one.calls_before) != _number(one.calls_after)


def _module(found: RunComparison, part: PartChange) -> OperatorChange | None:
    """The innermost module with most of the change of a part: of those that have it, the one with least time."""
    modules = [
        one
        for one in found.operators
        if one.kind == "module"
        and not one.noise
        and one.change_us * part.change_us >= MIN_SHARE_OF_PART * part.change_us**2
    ]
    return min(modules, key=lambda one: one.before_us + one.after_us, default=None)


def _calls(one: CollectiveChange) -> str:
    return f"{one.collective} {_sizes(one)}"


def _sizes(one: CollectiveChange) -> str:
    calls = f"{_number(one.calls_before)} → {_number(one.calls_after)} a step"
    if one.bytes_before == one.bytes_after or not one.bytes_before or not one.bytes_after:
        return calls
    return f"{calls}, {readable.size(one.bytes_before)} → {readable.size(one.bytes_after)} each"


def _number(calls: float) -> str:
    return f"{calls:.3g}"


def _elsewhere(found: RunComparison, part: PartChange) -> str:
    """What is known of steps that were not recorded."""
    known: list[WaitChange | CodeChange] = [*found.waits, *found.code]
    alike = [one for one in known if not one.noise and one.change_us * part.change_us > 0]
    most = max(alike, key=lambda one: abs(one.change_us), default=None)
    if most is None or abs(most.change_us) < MIN_SHARE_OF_PART * abs(part.change_us):
        return ""
    what = most.line if isinstance(most, CodeChange) else WAITING[most.name]
    return f" ({signed(most)} {printable(what, LONGEST_NAME)})"


def _slow_why(found: RunComparison) -> str:
    """What makes steps slow: saves, or a finding of one run alone."""
    if found.saves:
        return f" (saves: {saves_text(found.saves)})"
    about = next((one for one in found.findings if one.id.startswith(SLOW_STEP_FINDINGS)), None)
    return f" ({about.id}: {about.title})" if about else ""


WAITING = {"loader_wait": "waiting for input", "cpu_wait": "waiting for a CPU, which other processes may have used"}


def saves_text(saves: SaveChange) -> str:
    """`every 8 steps → every 4 steps, each stops 60.0 ms → 60.0 ms`."""
    every = [f"every {one} steps" if one else "none" for one in (saves.every_before, saves.every_after)]
    stops = [readable.duration(ns(us or 0)) for us in (saves.stops_before_us, saves.stops_after_us)]
    return f"{every[0]} → {every[1]}, each stops the step for {stops[0]} → {stops[1]}"
