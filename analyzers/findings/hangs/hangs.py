"""ESP801–803, ESP805 and ESP808: hangs and dead ranks, from the flight recorder."""

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

_HANG_IDS: dict[HangKind, str] = {
    "absent": "ESP801",
    "gone": "ESP801",
    "unseen": "ESP801",
    "mismatch": "ESP802",
    "deadlock": "ESP802",
    "stuck": "ESP805",
}
_STALL_IDS: dict[StallKind, str] = {"unjoined": "ESP801", "joining": "ESP805", "loader": "ESP808", "alone": "ESP808"}
_STALL_ADVICE: dict[StallKind, str] = {
    "unjoined": "Every rank has to call init_process_group with the same address and world size. Check where these "
    "ranks are. If a rank has no recording, check that its process was started and can reach MASTER_ADDR:MASTER_PORT.",
    "joining": "All recorded ranks are in init_process_group. Check MASTER_ADDR and MASTER_PORT, firewalls, the "
    "world size, and whether all nodes were started.",
    "loader": "Examine the worker's line: a read that does not return, or a lock that a thread held when "
    'the worker was forked (use multiprocessing_context="spawn", or start threads after the first batch).',
    "alone": "Examine the line: a lock held by another process, a read or a queue that does not return.",
}
_MIN_WAIT_OF_DUMP_NS: Ns = 5_000_000_000
"""Least wait in a collective for which a dump indicates a hang and not a running job: the default of --hang."""
_LOST_PEER = re.compile(r"connection (closed|reset) by (peer|remote)|broken pipe|remote process exited", re.IGNORECASE)
"""Matches the errors that backends raise when the remote process has ended."""
_HANG_ADVICE: dict[HangKind, str] = {
    "absent": "Every rank of a group has to enter each of its collectives. Examine where these ranks are: code that "
    "only some ranks run (`if rank == 0`), a loop that they leave early or enter late, a read or lock that does not "
    "return. A long save or validation is not a hang: set the time limit with `esprof record --hang`.",
    "gone": "These ranks had less work than the others, usually fewer batches. Use drop_last=True, the same number "
    "of batches on all ranks, or torch.distributed.algorithms.Join.",
    "unseen": "Examine these processes (`py-spy dump`): they may be stopped, or native code may hold the GIL.",
    "mismatch": "All ranks of a group have to enter the same collectives in the same order, with equal sizes. Look "
    "for an earlier branch that depends on the rank or its data.",
    "deadlock": "Enter the collectives of several groups in the same order on all ranks.",
    "stuck": "All ranks entered the collective. Check the network, the output of NCCL_DEBUG=INFO, and device queues.",
}
_DEATH_ADVICE: dict[Literal["error", "signal"] | None, str] = {
    None: "esprof does not end processes this way. Check for the kernel's out-of-memory killer (`dmesg`), limits of the "
    "scheduler or container, and os._exit() in the job.",
    "error": "The exception was raised in the job; the other ranks ended because of it.",
    "signal": "Examine the native code that ran there; `python -X faulthandler` and a core dump show more.",
}


@dataclass(frozen=True)
class _Death:
    """The end of a rank that the launcher did not cause."""

    rank: Rank
    cause: str | None
    kind: Literal["error", "signal"] | None
    """What ended it; None where unknown."""
    location: StackFrame | None


def hangs(job: RecordedJob) -> list[Cause]:
    """Why the job hangs or died: ESP801, 802, 803, 805 or 808; empty if it did neither."""
    logs = {meta.rank: job.run.flight(meta.rank) for meta in job.run.meta.ranks}
    last_steps = {rank: job.steps.last(rank) for rank in logs}
    snapshots = open_snapshots(logs, last_steps)
    stall = find_stall(snapshots)
    hang = find_hang(snapshots, [rank for rank, log in logs.items() if log.ended and rank not in snapshots])
    alive = [rank for rank, one in snapshots.items() if one.reason != SnapshotReason.ERROR]
    if hang and hang.kind != "mismatch" and not alive:
        hang = None  # An exception may leave any collective unfinished.
    crashed, vanished, raised = _deaths({rank: log for rank, log in logs.items() if rank not in alive})
    if crashed and not (hang and hang.kind == "mismatch"):
        return [_death_cause(crashed, hang, logs, last_steps)]
    if hang:
        return [_hang_cause(hang, snapshots, logs)]
    if stall and stall.kind in _STALL_IDS:
        return [_stall_cause(stall, snapshots, logs)]
    if 0 < len(vanished) < len(logs):
        return [_death_cause(vanished, None, logs, last_steps)]
    ended = tuple(rank for rank, log in logs.items() if log.ended and not _raised(log))
    if raised and ended and _LOST_PEER.search(raised[0].cause or ""):
        return [_early_end_cause(ended, raised[0], last_steps)]
    if raised:
        return [_death_cause(raised, None, logs, last_steps)]
    return _unstarted(snapshots, logs) if any(log.starting for log in logs.values()) else []


def _deaths(logs: Mapping[Rank, FlightLog]) -> tuple[list[_Death], list[_Death], list[_Death]]:
    """(ranks that a fault ended, ranks that vanished without a record, the first rank that an exception ended).

    Ranks that received SIGTERM are excluded: the launcher or a person ended them.
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
    """Whether an exception raised in the rank ended it."""
    error_type = log.snapshots[-1].error_type if log.snapshots else None
    return error_type not in (None, "KeyboardInterrupt")


def _death_cause(
    deaths: list[_Death], hang: Hang | None, logs: Mapping[Rank, FlightLog], last_steps: Mapping[Rank, int]
) -> Cause:
    ranks = tuple(death.rank for death in deaths)
    first = deaths[0]
    step = max(last_steps.values()) + 1  # A killed rank may not have written its last steps; the others have.
    when = f"in step {step}" if not logs[first.rank].starting else "before its first step ended"
    return Cause(
        id="ESP803",
        title=f"{readable.ranks(ranks).capitalize()} died {when}: {_first_line(first.cause)}",
        ranks=ranks,
        confidence="high",
        severity="critical",
        evidence={
            "causes": by_rank({death.rank: death.cause for death in deaths}),
            "stacks": by_rank({death.rank: str(death.location) for death in deaths if death.location}),
            "last_complete_step": by_rank(last_steps),
        }
        | (waiting_evidence(hang) if hang and hang.waiting else {}),
        advice=_DEATH_ADVICE[first.kind],
    )


def _early_end_cause(ended: tuple[Rank, ...], lost: _Death, last_steps: Mapping[Rank, int]) -> Cause:
    """Ranks that ended normally although another one still needed them and lost its connection."""
    return Cause(
        id="ESP801",
        title=f"{readable.ranks(ended).capitalize()} ended after step {max(last_steps[rank] for rank in ended)}, "
        f"but rank {lost.rank} entered another collective with {'it' if len(ended) == 1 else 'them'}",
        ranks=ended,
        confidence="high",
        severity="critical",
        evidence={
            "causes": by_rank({lost.rank: lost.cause}),
            "stacks": by_rank({lost.rank: str(lost.location)} if lost.location else {}),
        },
        advice=_HANG_ADVICE["gone"],
    )


def _hang_cause(hang: Hang, snapshots: Mapping[Rank, Snapshot], logs: Mapping[Rank, FlightLog]) -> Cause:
    step = max(snapshots[rank].step for rank in snapshots)
    counted = any(log.counts_steps for log in logs.values())
    evidence = ({"step": Evidence(step)} if counted else {}) | waiting_evidence(hang)
    if hang.mismatch is not None:
        evidence |= _mismatch_evidence(hang.mismatch)
    last_collectives = last_entered(hang.at_fault, snapshots)
    if last_collectives:
        evidence |= {"last_entered": by_rank(last_collectives)}
    return Cause(
        id=_HANG_IDS[hang.kind],
        title=f"{_when(step, snapshots, logs)}: {hang}",
        ranks=hang.at_fault,
        confidence="high" if counted else _dump_confidence(hang),
        severity="critical",
        evidence=evidence | {"stacks": by_rank(locations(hang.at_fault, snapshots))},
        advice=_HANG_ADVICE[hang.kind],
    )


def _dump_confidence(hang: Hang) -> Confidence:
    """Confidence in a hang found in a single dump: any running job has unfinished collectives."""
    return "medium" if hang.mismatch or hang.waited_ns >= _MIN_WAIT_OF_DUMP_NS else "low"


def _when(step: int, snapshots: Mapping[Rank, Snapshot], logs: Mapping[Rank, FlightLog]) -> str:
    """Start of the title, such as `The job hung in step 9`."""
    is_alive = any(logs[rank].alive for rank in snapshots)
    if not any(log.counts_steps for log in logs.values()):
        return "The job hangs" if is_alive else "The job hung when it was dumped"
    if not step:
        return f"The job {'hangs' if is_alive else 'hung'} before its first step"
    return f"The job {'hangs' if is_alive else 'hung'} in step {step}"


def _stall_cause(stall: Stall, snapshots: Mapping[Rank, Snapshot], logs: Mapping[Rank, FlightLog]) -> Cause:
    """Ranks that hang outside the numbered collectives: while they join the process group, in a loader, or elsewhere."""
    joining = {"missing": Evidence(stall.at_fault, "ranks"), "entered_by": Evidence(stall.others, "ranks")}
    return Cause(
        id=_STALL_IDS[stall.kind],
        title=f"{_when(max(one.step for one in snapshots.values()), snapshots, logs)}: {stall}",
        ranks=stall.at_fault,
        confidence="high",
        severity="critical",
        evidence={"waited": Evidence(stall.waited_ns, "ns")}
        | (joining if stall.others else {})
        | {"stacks": by_rank(locations(stall.at_fault, snapshots))},
        advice=_STALL_ADVICE[stall.kind],
    )


def _unstarted(snapshots: Mapping[Rank, Snapshot], logs: Mapping[Rank, FlightLog]) -> list[Cause]:
    """ESP808 for a job without a complete step; with low confidence, because it may only be slow to start."""
    stacks = {rank: str(log.location) for rank, log in logs.items() if log.location} | locations(
        tuple(snapshots), snapshots
    )
    if not stacks:
        return []
    is_alive = any(log.alive for log in logs.values())
    return [
        Cause(
            id="ESP808",
            title="No step has ended yet" if is_alive else "The job was stopped before its first step ended",
            ranks=tuple(sorted(stacks)),
            confidence="low",
            severity="warning",
            evidence={"stacks": by_rank(dict(sorted(stacks.items())))},
            advice="It is unknown whether the job would have started. Let it run longer; a smaller --hang shows "
            "earlier where it is.",
        )
    ]


def _mismatch_evidence(mismatch: Mismatch) -> dict[str, Evidence]:
    return {
        "mismatch_in_group": Evidence(mismatch.group, "ranks"),
        "mismatch_number": Evidence(mismatch.number),
        "odd_ranks": Evidence(mismatch.odd, "ranks"),
        "odd_ranks_entered": Evidence(str(mismatch.theirs)),
        "others_entered": Evidence(str(mismatch.others)),
        "skipped_one": Evidence(mismatch.skipped),
    }


_NO_PRICE = "None: a hanging job has no step time to save."

_PAGES = (
    Page(
        "ESP801",
        "A rank did not enter a collective",
        "Ranks wait in a collective that another rank of the group has not entered, and no step has ended since. "
        "Before the end of the first step, `init_process_group` counts as a collective. The missing rank runs other "
        "code, has ended, or does not respond. In a chain of waiting ranks only the last one, for which all others "
        "wait, is at fault.",
        "`collective`, its `number` in the process group `group`, and its `size`; which ranks entered it, which are "
        "missing, how long the first one had waited at the time of the snapshot, and in `stacks` the line of the "
        "job's own code where each rank was. For dumps of PyTorch's Flight Recorder, which only have stacks of "
        "entered collectives, `last entered` is the last collective of the missing rank, with the line of the call.",
        _NO_PRICE,
        "Examine the line of the missing rank. Usual causes: code under `if rank == 0`, loops of different length, an "
        "exception that one rank swallows, a read or a lock that does not return. A long save or validation looks the "
        "same until it ends.",
    ),
    Page(
        "ESP802",
        "Ranks entered different collectives",
        "Under the same number in a process group, ranks entered different collectives, or one collective with "
        "different sizes; or ranks entered the collectives of two groups in different orders and wait for each "
        "other (deadlock).",
        "`mismatch number` is the first number at which ranks differ, with the collectives that the odd ranks and "
        "the others entered. `skipped one` says that the odd ranks skipped one collective and match the others from "
        "the next one on.",
        _NO_PRICE,
        "Enter the same collectives in the same order on all ranks: no branch around them may depend on the rank or on "
        "its data.",
    ),
    Page(
        "ESP803",
        "A rank died",
        "The process of a rank ended by a signal, by an exception, or without a record, and the others could not "
        "continue. Ranks that the launcher ended afterwards are not listed.",
        "`causes` by rank; `stacks`: where the rank was, if a signal handler or an exception recorded it; "
        "`last complete step` of every rank, as far as it was written.",
        _NO_PRICE,
        "If there is no record, the usual reason is the kernel's out-of-memory killer, or a limit of the scheduler.",
    ),
    Page(
        "ESP805",
        "A collective that all ranks entered does not end",
        "Every rank of the group has entered the same collective, and it does not complete.",
        "As in ESP801.",
        _NO_PRICE,
        "Check the connection between the ranks: network interfaces and firewalls, or a device whose queue makes no "
        "progress.",
    ),
    Page(
        "ESP808",
        "A rank hangs outside collectives",
        "A rank made no progress, in its first step or later: for a minute (twelve times `--hang`) it stayed at the "
        "same source location, and neither it nor a process that it started used the CPU, read or wrote. It waits "
        "for a worker of its data loader, a lock, or a read. With low confidence: the job was stopped before its "
        "first step ended, and it is unknown whether the step would have ended.",
        "`waited` is the duration; `stacks` are the lines of the job's own code where each rank was and, if it "
        "waited for a worker of its data loader, the line of that worker.",
        _NO_PRICE,
        "Examine the given line. A worker that was forked while a thread held a lock waits for it forever: use "
        'multiprocessing_context="spawn", or start threads after the loader\'s first batch.',
    ),
)

RULE = Rule(pages=_PAGES, of_job=hangs, stops_the_job=True)
