"""Flight recordings made by hand: collectives that ranks had entered at the time of a snapshot, and their stacks."""

from esprof.run.flight.log import CallLog, EnteredCall, FlightLog, GroupMembers, Snapshot, StackFrame, StackThread
from esprof.run.raw.reasons import SnapshotReason
from esprof.run.run import RankMeta, Run, RunMeta
from esprof.run.schema import EVENTS, STEPS, table

S = 1_000_000_000
STEP_NS = 10_000_000
HUNG_STEP = 9
BEGAN_NS = HUNG_STEP * STEP_NS
"""Begin of the step in which the job hangs."""
SEEN_NS = BEGAN_NS + 6 * S
"""Default time of snapshots."""


def call(number, name="all_reduce", elements=512, *, over=True, group="0", at_ns=BEGAN_NS + 1000, **fields):
    """A collective that was entered, 4 bytes per element; with `over=False` the rank still waits in it."""
    return EnteredCall(
        process_group=(group, "default_pg"),
        collective_seq_id=number,
        profiling_name=f"gloo:{name}",
        input_sizes=((elements,),) if elements else (),
        input_dtypes=("Float",) if elements else (),
        state=fields.pop("state", "scheduled"),
        retired=over,
        time_created_ns=at_ns,
        **fields,
    )


def snapshot(rank, calls, *, location=("train.py", 10, "main"), groups=None, world=2, step=HUNG_STEP, **fields):
    """A snapshot of a rank at `location`, which calls into torch's code."""
    frames = (
        StackFrame("/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", 3, "wait"),
        StackFrame(*location),
    )
    members = groups or {"0": tuple(range(world))}
    return Snapshot(
        reason=SnapshotReason(fields.pop("reason", "hang")),
        rank=rank,
        at_ns=fields.pop("at_ns", SEEN_NS),
        step=step,
        since_ns=step * STEP_NS,
        usual_ns=STEP_NS,
        error_type=fields["error"].partition(":")[0] if "error" in fields else None,
        threads=(
            StackThread(name="loader", training=False, frames=(StackFrame("/usr/lib/python3.11/queue.py", 1, "get"),)),
            StackThread(name="MainThread", training=True, frames=frames),
        ),
        groups=tuple(GroupMembers(name=name, ranks=ranks) for name, ranks in members.items()),
        calls=(CallLog(tuple(calls)),),
        **fields,
    )


def by_rank(*snapshots):
    return {one.rank: one for one in snapshots}


def run_of_flight(logs, *, last_step=HUNG_STEP - 1, long_steps=None, source="esprof"):
    """A run without windows: `logs` by rank; each rank ended `last_step` steps, of 10 ms or as in `long_steps`."""
    durations = long_steps or {}
    rows = {
        "step": list(range(1, last_step + 1)),
        "start_ns": [step * STEP_NS for step in range(1, last_step + 1)],
        "dur_ns": [durations.get(step, STEP_NS) for step in range(1, last_step + 1)],
        "phase": ["plain"] * last_step,
    }
    steps = table(rows, STEPS)
    meta = RunMeta(source=source, world_size=len(logs), ranks=tuple(RankMeta(rank=rank) for rank in logs))
    tables = {"steps": steps, "events": table({}, EVENTS)}
    return Run(meta, lambda name, rank: tables.get(name), flight=logs.get)


def killed(*snapshots, fatal=None, **fields):
    """The log of a rank that did not end normally."""
    return FlightLog(snapshots=snapshots, fatal=fatal, ended=False, **fields)


SIGTERM_TEXT = """Thread 0x00007f01 (most recent call first):
  File "/usr/lib/python3.11/threading.py", line 320 in wait

Current thread 0x00007f00 (most recent call first):
  File "/venv/lib/python3.11/site-packages/torch/distributed/c10d.py", line 3252 in all_reduce
  File "/job/train.py", line 88 in step
  File "/job/train.py", line 99 in <module>
"""
SEGV_TEXT = "Fatal Python error: Segmentation fault\n\n" + SIGTERM_TEXT
"""Output of faulthandler."""
