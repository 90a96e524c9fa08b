"""ESP801–803, ESP805 and ESP808: ranks that wait without end, and ranks that died, by what the flight recorder saw."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from esprof.analyzers.evidence import Evidence, by_rank
from esprof.analyzers.finding import Confidence
from esprof.analyzers.findings.hangs.flight_evidence import last_entered, locations, waiting_evidence
from esprof.analyzers.recorded_job import RecordedJob
from esprof.analyzers.rule import Cause, Page, Rule
from esprof.core import readable
from esprof.core.text import LONGEST_NAME, printable
from esprof.core.types import Ns, Rank
from esprof.run.flight.hang import Hang, HangKind, Mismatch, find_hang, open_snapshots
from esprof.run.flight.log import FlightLog, Snapshot, StackFrame
from esprof.run.flight.stall import Stall, StallKind, find_stall
from esprof.run.raw.reasons import SnapshotReason

_IDS: dict[HangKind, str] = {
    "absent": "ESP801",
    "gone": "ESP801",
    "unseen": "ESP801",
    "mismatch": "ESP802",
    "deadlock": "ESP802",
    "stuck": "ESP805",
}
_OWN_IDS: dict[StallKind, str] = {"unjoined": "ESP801", "joining": "ESP805", "loader": "ESP808", "alone": "ESP808"}
_OWN_ADVICE: dict[StallKind, str] = {
    "unjoined": "Every rank has to call init_process_group with the same address and world size. Look where these ranks "
    "are; of ranks that are not seen, look whether their process was started and can reach MASTER_ADDR:MASTER_PORT.",
    "joining": "All ranks here are in init_process_group, so look at what they wait for: MASTER_ADDR and MASTER_PORT, a "
    "firewall, the world size, a node that was not started.",
    "loader": "Look at the line that the worker is at: a read that does not return, or a lock that a thread held when "
    'the worker was forked (use multiprocessing_context="spawn", or make threads after the first batch).',
    "alone": "Look at the line: a lock that another process holds, a read or a queue that does not return.",
}
_MIN_WAIT_OF_DUMP_NS: Ns = 5_000_000_000
"""The wait in a collective from which on a dump of it is more than a look at a job that runs: what --hang is by default."""
_LOST_PEER = re.compile(r"connection (closed|reset) by (peer|remote)|broken pipe|remote process exited", re.IGNORECASE)
"""What backends raise where the process at the other end has gone."""
_ADVICE: dict[HangKind, str] = {
    "absent": "Every rank of a group has to enter each of its collectives. Look where these ranks are: at code that only "
    "some ranks run (`if rank == 0`), a loop that they leave early or enter late, a read or lock that does not "
    "return. If it is a long save or validation, nothing hangs: `esprof record --hang` says how long is long.",
    "gone": "These ranks had less to do than the others, most often fewer batches: use drop_last=True, or the same number "
    "of batches on all ranks, or torch.distributed.algorithms.Join.",
    "unseen": "Look at these processes: they may be stopped, or native code may hold Python's lock (`py-spy dump`).",
    "mismatch": "All ranks of a group have to enter the same collectives in the same order, with equal sizes. Look for a "
    "branch that depends on the rank or its data before this one.",
    "deadlock": "Enter the collectives of several groups in the same order on all ranks.",
    "stuck": "All ranks did their part, so look at the way between them: network, NCCL_DEBUG=INFO, a full device queue.",
}
_AFTER_DEATH: dict[Literal["error", "signal"] | None, str] = {
    None: "esprof does not end a process this way: look for the kernel's out-of-memory killer (`dmesg`), for limits of the "
    "scheduler or container, or for os._exit() in the job.",
    "error": "The exception was raised in the job; the other ranks end because of this one.",
    "signal": "Look at the native code that ran there; `python -X faulthandler` and a core dump tell more.",
}


@dataclass(frozen=True)
class _Death:
    """The end of one rank that was not the launcher's doing."""

    rank: Rank
    cause: str | None
    kind: Literal["error", "signal"] | None
    """What ended it; None where it left no word."""
    location: StackFrame | None


def hangs(job: RecordedJob) -> list[Cause]:
    """ESP801, 802, 803, 805 or 807: what made the job hang or end, if anything did."""
    logs = {meta.rank: job.run.flight(meta.rank) for meta in job.run.meta.ranks}
    last = {rank: job.steps.last(rank) for rank in logs}
    open_ones = open_snapshots(logs, last)
    stopped = find_stall(open_ones)
    still = find_hang(open_ones, [rank for rank, log in logs.items() if log.ended and rank not in open_ones])
    alive_then = [rank for rank, one in open_ones.items() if one.reason != SnapshotReason.ERROR]
    if still and still.kind != "mismatch" and not alive_then:
        still = None  # An exception may leave any collective unfinished.
    crashed, vanished, raised = _deaths({rank: log for rank, log in logs.items() if rank not in alive_then})
    if crashed and not (still and still.kind == "mismatch"):
        return [_death_cause(crashed, still, logs, last)]
    if still:
        return [_hang_cause(still, open_ones, logs)]
    if stopped and stopped.kind in _OWN_IDS:
        return [_stall_cause(stopped, open_ones, logs)]
    if 0 < len(vanished) < len(logs):
        return [_death_cause(vanished, None, logs, last)]
    left = tuple(rank for rank, log in logs.items() if log.ended and not _raised(log))
    if raised and left and _LOST_PEER.search(raised[0].cause or ""):
        return [_left_cause(left, raised[0], last)]
    if raised:
        return [_death_cause(raised, None, logs, last)]
    return _unstarted(open_ones, logs) if any(log.starting for log in logs.values()) else []


def _deaths(logs: Mapping[Rank, FlightLog]) -> tuple[list[_Death], list[_Death], list[_Death]]:
    """Ranks that a fault ended, ranks that are gone without a word, and the first that an exception ended.

    A rank that got SIGTERM is none of these: the launcher or a person ended it.
    """
    crashed = [_Death(rank, log.fault, "signal", log.location) for rank, log in logs.items() if log.fault is not None]
    vanished = [
        _Death(rank, "killed, or left by os._exit()", None, None)
        for rank, log in logs.items()
        if log.died and not log.fatal
    ]
    errors = sorted((log.snapshots[-1] for log in logs.values() if _raised(log)), key=lambda snapshot: snapshot.at_ns)
    return crashed, vanished, [_Death(one.rank, one.error or "", "error", one.location) for one in errors[:1]]


def _first_line(cause: str | None) -> str:
    return printable((cause or "").partition("\n")[0], LONGEST_NAME)


def _raised(log: FlightLog) -> bool:
    """Whether an exception of the rank's own ended it."""
    error_type = log.snapshots[-1].error_type if log.snapshots else None
    return error_type not in (None, "KeyboardInterrupt")


def _death_cause(
    deaths: list[_Death], still: Hang | None, logs: Mapping[Rank, FlightLog], last: Mapping[Rank, int]
) -> Cause:
    ranks = tuple(death.rank for death in deaths)
    first = deaths[0]
    step = max(last.values()) + 1  # What a killed rank had not yet written of its last steps, the others have.
    when = f"in step {step}" if not logs[first.rank].starting else "before its first step was over"
    return Cause(
        id="ESP803",
        title=f"{readable.ranks(ranks).capitalize()} died {when}: {_first_line(first.cause)}",
        ranks=ranks,
        confidence="high",
        severity="critical",
        evidence={
            "causes": by_rank({death.rank: death.cause for death in deaths}),
            "stacks": by_rank({death.rank: str(death.location) for death in deaths if death.location}),
            "last_whole_step": by_rank(last),
        }
        | (waiting_evidence(still) if still and still.waiting else {}),
        advice=_AFTER_DEATH[first.kind],
    )


def _left_cause(left: tuple[Rank, ...], lost: _Death, last: Mapping[Rank, int]) -> Cause:
    """Some ranks ended in peace, and another one lost its connection to them."""
    return Cause(
        id="ESP801",
        title=f"{readable.ranks(left).capitalize()} ended after step {max(last[rank] for rank in left)}, "
        f"while rank {lost.rank} went on to a collective with {'it' if len(left) == 1 else 'them'}",
        ranks=left,
        confidence="high",
        severity="critical",
        evidence={
            "causes": by_rank({lost.rank: lost.cause}),
            "stacks": by_rank({lost.rank: str(lost.location)} if lost.location else {}),
        },
        advice=_ADVICE["gone"],
    )


def _hang_cause(still: Hang, open_ones: Mapping[Rank, Snapshot], logs: Mapping[Rank, FlightLog]) -> Cause:
    step = max(open_ones[rank].step for rank in open_ones)
    counted = any(log.counts_steps for log in logs.values())
    evidence = ({"step": Evidence(step)} if counted else {}) | waiting_evidence(still)
    if still.mismatch is not None:
        evidence |= _mismatch_evidence(still.mismatch)
    came_from = last_entered(still.at_fault, open_ones)
    if came_from:
        evidence |= {"last_entered": by_rank(came_from)}
    return Cause(
        id=_IDS[still.kind],
        title=f"{_when(step, open_ones, logs)}: {still}",
        ranks=still.at_fault,
        confidence="high" if counted else _of_dumps(still),
        severity="critical",
        evidence=evidence | {"stacks": by_rank(locations(still.at_fault, open_ones))},
        advice=_ADVICE[still.kind],
    )


def _of_dumps(still: Hang) -> Confidence:
    """How sure a hang is that one look at the ranks shows: any job has collectives that are not over yet."""
    return "medium" if still.mismatch or still.waited_ns >= _MIN_WAIT_OF_DUMP_NS else "low"


def _when(step: int, open_ones: Mapping[Rank, Snapshot], logs: Mapping[Rank, FlightLog]) -> str:
    """How a title begins of a job that stands still, or stood still until its end."""
    lives = any(logs[rank].alive for rank in open_ones)
    if not any(log.counts_steps for log in logs.values()):
        return "The job stands still" if lives else "The job stood still when it was dumped"
    if not step:
        return f"The job {'stands still' if lives else 'hung'} before its first step"
    return f"Step {step} stands still" if lives else f"The job hung in step {step}"


def _stall_cause(found: Stall, open_ones: Mapping[Rank, Snapshot], logs: Mapping[Rank, FlightLog]) -> Cause:
    """Ranks that stand still, and wait in no collective that PyTorch numbers."""
    kept = {"missing": Evidence(found.at_fault, "ranks"), "entered_by": Evidence(found.others, "ranks")}
    kept = kept if found.others else {}
    return Cause(
        id=_OWN_IDS[found.kind],
        title=f"{_when(max(one.step for one in open_ones.values()), open_ones, logs)}: {found}",
        ranks=found.at_fault,
        confidence="high",
        severity="critical",
        evidence={"waited": Evidence(found.waited_ns, "ns")}
        | kept
        | {"stacks": by_rank(locations(found.at_fault, open_ones))},
        advice=_OWN_ADVICE[found.kind],
    )


def _unstarted(open_ones: Mapping[Rank, Snapshot], logs: Mapping[Rank, FlightLog]) -> list[Cause]:
    """ESP808 of a job that was ended, or still runs, before its first step was over: it may have been slow to start only."""
    at = {rank: str(log.location) for rank, log in logs.items() if log.location} | locations(
        tuple(open_ones), open_ones
    )
    if not at:
        return []
    lives = any(log.alive for log in logs.values())
    return [
        Cause(
            id="ESP808",
            title=f"{'No step has ended yet' if lives else 'The job was ended before its first step was over'}",
            ranks=tuple(sorted(at)),
            confidence="low",
            severity="warning",
            evidence={"stacks": by_rank(dict(sorted(at.items())))},
            advice="Nothing tells whether it would have started: let it go on for longer, with a smaller --hang to be told "
            "sooner where it is.",
        )
    ]


def _mismatch_evidence(mismatch: Mismatch) -> dict[str, Evidence]:
    return {
        "mismatch_in_group": Evidence(mismatch.group, "ranks"),
        "mismatch_number": Evidence(mismatch.number),
        "odd_ranks": Evidence(mismatch.odd, "ranks"),
        "odd_ranks_entered": Evidence(str(mismatch.theirs)),
        "others_entered": Evidence(str(mismatch.others)),
        "left_one_out": Evidence(mismatch.skipped),
    }


_NO_PRICE = "None: a job that stands still has no step time to gain."

_PAGES = (
    Page(
        "ESP801",
        "A rank did not enter a collective",
        "Ranks wait in a collective that another rank of the group has not entered, and no step has ended since. Before the "
        "first step's end `init_process_group` counts as one. That rank is somewhere else, has ended, or gives no sign. A "
        "rank that waits in a collective of another group is not to blame: the one at the end of the chain is.",
        "`collective`, its `number` in the process group `group`, and `size`; who entered it, who is missing, how long "
        "the first one had waited when the ranks were looked at, and in `stacks` the line of the job's own code that "
        "each rank was at. Of a dump of PyTorch's Flight Recorder, which knows only stacks that entered a collective, "
        "`last_entered` is the last collective of the missing rank, and the line that entered it.",
        _NO_PRICE,
        "Look at the line of the missing rank. Usual causes: code under `if rank == 0`, loops of different length, an "
        "exception that one rank swallows, a read or a lock that does not return. A long save or validation looks the "
        "same while it lasts.",
    ),
    Page(
        "ESP802",
        "Ranks entered different collectives",
        "Under one number of a process group, ranks entered different collectives, or one collective with different "
        "sizes; or ranks entered the collectives of two groups in different orders and wait for each other.",
        "`mismatch_number` is the first number at which ranks differ, with what the odd ones and the others entered; "
        "`left_one_out` says that the odd ranks go on as the others do one call later.",
        _NO_PRICE,
        "Enter the same collectives in the same order on all ranks: no branch around them may depend on the rank or on "
        "its data.",
    ),
    Page(
        "ESP803",
        "A rank died",
        "The process of a rank ended by a signal, by an exception, or without a word, and the others could not go on. "
        "Ranks that the launcher ended after it are not named.",
        "`causes` by rank; `stacks` where the rank was, if a signal or an exception told; `last_whole_step` of every "
        "rank, as far as it was written.",
        _NO_PRICE,
        "Without a word it is most often the kernel's out-of-memory killer, or a limit of the scheduler.",
    ),
    Page(
        "ESP805",
        "A collective that all ranks entered does not end",
        "Every rank of the group has entered it, all agree on what it is, and it is not over.",
        "As of ESP801.",
        _NO_PRICE,
        "Look at what is between the ranks: network interfaces and firewalls, a device whose queue does not move.",
    ),
    Page(
        "ESP808",
        "A rank waits for something that is no collective",
        "A rank stood still, before its first step was over or in a later one: it came to no new place in the code, and "
        "neither it nor a process that it started used the CPU, read or wrote, for a minute (twelve times `--hang`). It "
        "waits for a worker of its data loader, a lock, a read. With low confidence: the job was ended before its first "
        "step was over, and nothing tells whether it would have come to it.",
        "`waited` is for how long; `stacks` the line of the job's own code that each rank was at and, where it waited for a "
        "worker of its data loader, the line that the worker was at.",
        _NO_PRICE,
        "Look at the line that is named. A worker that was forked while a thread held a lock waits for it for ever: use "
        'multiprocessing_context="spawn", or make threads after the loader\'s first batch.',
    ),
)

RULE = Rule(pages=_PAGES, of_job=hangs, stops_the_job=True)
