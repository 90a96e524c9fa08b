"""Effect of each term of docs/reference/what-ifs.md on a program: the truth of a what-if is the program run again with the
durations that these functions return.

Where the documentation is ambiguous, these functions take it literally:

- `gpu` is work on streams except communication, which belongs to the links (`network`), and except copies between host and
  device. Copies on the device and memsets are work.
- `cpu` also speeds up the processes that make batches: they are CPU threads of the job. The latency from the end of a launch
  to its kernel is spent in the driver and the device, and stays. Sleeps are gaps, and so become shorter.
- `host` does not change the making of batches (it does not keep the device busy by itself), or gaps longer than 1 ms.
- `network` changes the bandwidth of links: the time of a collective that grows with its bytes becomes shorter, its latency
  does not. (The page does not mention the latency of communication between GPUs.)
- `collective` and `communication` change the whole collective, including latency and CPU time.
- `kernel` on a job that computes on CPUs is time spent directly in an operation of that name, not in operations it calls.
- `straggler=fix` removes the planted excess. If nothing is planted, or no rank clearly keeps the others waiting, nothing
  changes.
- `allocator` calls take no time and wait for nothing.
- `sync=0`: calls that wait for an event, a stream or the device take only their own time. A CPU that no longer waits runs
  ahead of its device, as far as the queue permits; a step then also lasts until the device has completed the work launched
  in it.
- `overlap=perfect` is `communication=0`, with no step shorter than the longest time within that step, as it ran, during
  which one rank has collectives in progress (concurrent ones count once).
"""

import re
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace

from benchmarks.known.machine import run
from benchmarks.known.program import Busy, Cost, Kind, Ns, Program, Sync
from benchmarks.known.timeline import Timeline

AS_IT_RAN = "gpu=1x"
"""A scenario that changes nothing."""
NO_SYNC = "sync=0"
LONG_GAP_NS = 1_000_000
"""A longer gap is a sleep or I/O (docs/reference/what-ifs.md, host)."""

_TERM = re.compile(
    r"(?:rank(?P<rank>\d+)\.|device\[(?P<device>[^]]+)\]\.)?(?P<name>\w+)(?:\[(?P<pattern>.*)\])?=(?P<value>.+)"
)
_COMMUNICATION = (Kind.LATENCY, Kind.BYTES, Kind.HANDLING)
_THREADS = (Kind.CPU, Kind.GAP, Kind.LOAD, Kind.ALLOCATOR, Kind.HANDLING)


def true_steps(
    program: Program, scenario: str, without: Collection[int] = (), by_optimizers_from: int | None = None
) -> dict[int, Ns]:
    """Duration of each step of the program under a scenario, ns: a term, or several joined by commas.

    Ranks `without` are ignored. With `by_optimizers_from`, steps are those that end with an optimizer, from that step on.
    """

    def spans(timeline: Timeline) -> dict[int, tuple[Ns, Ns]]:
        if by_optimizers_from is None:
            return timeline.spans(without)
        return timeline.optimizer_spans(by_optimizers_from, without)

    if NO_SYNC in scenario.split(","):
        return _done_steps(program, changed(program, scenario), without)
    steps = {number: end - begin for number, (begin, end) in spans(run(program, changed(program, scenario))).items()}
    if _hides(scenario):
        before = run(program)
        least = {number: _busiest(program, before, span) for number, span in spans(before).items()}
        steps = {number: max(ns, least[number]) for number, ns in steps.items()}
    return steps


def _done_steps(program: Program, durations: list[Ns], without: Collection[int]) -> dict[int, Ns]:
    """Duration of each step without waits for the device, ns: the recorded one, plus the change of the time until the work
    launched in the step has completed."""
    usual = run(program)
    code = tuple(
        {
            name: tuple(
                Busy(at.cost) if isinstance(at, Sync) and program.costs[at.cost].kind is not Kind.ALLOCATOR else at
                for at in thread
            )
            for name, thread in threads.items()
        }
        for threads in program.ranks
    )
    before, after = (_done_spans(one, without) for one in (usual, run(replace(program, ranks=code), durations)))
    was = usual.step_ns(without)
    return {number: was[number] + after[number] - before[number] for number in was}


def _done_spans(timeline: Timeline, without: Collection[int]) -> dict[int, Ns]:
    """Duration of each step, ns: from the completion of all work launched before it to the completion of all work launched
    in it, on all ranks."""
    done = {}
    launched = {(row.rank, row.correlation): row.start for row in timeline.rows if isinstance(row.lane, str)}
    for rank, marks in enumerate(timeline.steps):
        if rank in without:
            continue
        work = sorted(
            (launched[row.rank, row.correlation], row.end)
            for row in timeline.rows
            if row.rank == rank and not isinstance(row.lane, str)
        )
        ends, latest = [], 0
        for _, at in marks:
            while work and work[0][0] < at:
                latest = max(latest, work.pop(0)[1])
            ends.append(max(at, latest))
        done[rank] = ends
    boundaries = [max(at) for at in zip(*done.values(), strict=True)]
    numbers = [number for number, _ in next(iter(timeline.steps))]
    return {number: boundaries[at + 1] - boundaries[at] for at, number in enumerate(numbers[:-1]) if number is not None}


def _hides(scenario: str) -> bool:
    return "overlap=perfect" in scenario.split(",")


def changed(program: Program, scenario: str) -> list[Ns]:
    """Durations of the program under a scenario, ns."""
    durations = program.drawn
    for term in scenario.split(","):
        match = _TERM.fullmatch(term)
        if not match:
            raise ValueError(f"no term: {term}")
        change = _change(match["name"], match["pattern"], match["value"], Kind.KERNEL if program.devices else Kind.CPU)
        for at, cost in enumerate(program.costs):
            if _is_on(program, cost, match["rank"], match["device"]):
                durations[at] = change(cost, durations[at])
    return durations


def _is_on(program: Program, cost: Cost, rank: str | None, device: str | None) -> bool:
    if rank is not None:
        return cost.rank == int(rank)
    return device is None or (cost.rank >= 0 and device in program.devices[cost.rank])


_Change = Callable[[Cost, Ns], Ns]


def _change(name: str, pattern: str | None, value: str, computing: Kind) -> _Change:
    """The change of durations by a term; `computing` is the kind of work of the job's compute."""
    match name, value:
        case "communication" | "overlap", _:
            return _none(_COMMUNICATION)
        case "data", "0":
            return _none((Kind.LOAD,))
        case "sync", "0":
            return lambda cost, ns: ns
        case "allocator", "0":
            return _none((Kind.ALLOCATOR,))
        case "straggler", "fix":
            return lambda cost, ns: max(0, ns - cost.excess)
    factor = float(value.removesuffix("x"))
    named = re.compile(pattern) if pattern else None
    is_faster: Callable[[Cost], bool]
    match name:
        case "gpu":
            is_faster = lambda cost: cost.kind is Kind.KERNEL  # noqa: E731
        case "network":
            is_faster = lambda cost: cost.kind is Kind.BYTES  # noqa: E731
        case "cpu":
            is_faster = lambda cost: cost.kind in _THREADS  # noqa: E731
        case "host":
            is_faster = _keeps_busy
        case "kernel" if named:
            is_faster = lambda cost: cost.kind is computing and bool(named.search(cost.name))  # noqa: E731
        case "collective" if named:
            is_faster = lambda cost: cost.kind in _COMMUNICATION and bool(named.search(cost.name))  # noqa: E731
        case _:
            raise ValueError(f"no such term: {name}")
    return lambda cost, ns: round(ns / factor) if is_faster(cost) else ns


def _none(kinds: Iterable[Kind]) -> _Change:
    return lambda cost, ns: 0 if cost.kind in kinds else ns


def _keeps_busy(cost: Cost) -> bool:
    return cost.kind in (Kind.CPU, Kind.ALLOCATOR) or (cost.kind is Kind.GAP and cost.ns <= LONG_GAP_NS)


def _busiest(program: Program, timeline: Timeline, span: tuple[Ns, Ns]) -> Ns:
    """The longest time within the span during which one rank has collectives in progress, ns."""
    within: list[list[tuple[Ns, Ns]]] = [[] for _ in program.ranks]
    for collective, (begin, end) in zip(program.collectives, timeline.collectives, strict=True):
        if begin < span[1] and end > span[0]:
            for rank in collective.members:
                within[rank].append((max(begin, span[0]), min(end, span[1])))
    return max(_union(spans) for spans in within)


def _union(spans: list[tuple[Ns, Ns]]) -> Ns:
    total, reached = 0, -1
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total
