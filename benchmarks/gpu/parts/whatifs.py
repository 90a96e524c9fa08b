"""What-ifs that were carried out: what replay says a change gives, and what the job took once it was made.

A change is predicted by the term that stands for it: twice the batch as a GPU at half its speed, twice the layers as that
and a host at half its speed, a kernel that has twice the elements as that kernel at half its speed. How much more work a
change really is, no prediction knows; `given_work` is the same prediction told by how much the device's work grew.
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import mean, median

from benchmarks.gpu.kit import Kit, rounded
from benchmarks.gpu.replayed import in_window, steps_in
from benchmarks.gpu.sizes import LARGE, SHARED, SMALL, size
from benchmarks.settings import slug
from benchmarks.unseen import AS_IT_IS, Verdict, ask, mean_step_ms
from esprof import Run

REPEATS = 2


@dataclass(frozen=True)
class Change:
    """Arguments that are put behind those of the job, and the what-if that stands for it.

    `given_work` is one with a place for the device's speed-up, for changes of which the what-if does not know the size.
    """

    name: str
    arguments: tuple[str, ...]
    what_if: str
    given_work: str | None = None


@dataclass(frozen=True)
class Kind:
    name: str
    arguments: tuple[str, ...]
    changes: tuple[Change, ...]
    ranks: int = 1
    flags: tuple[str, ...] = ()


@dataclass
class Measured:
    """A setting over its repeats: its recordings, mean steps (ms), and work of the device a step (ns)."""

    runs: list[Run] = field(default_factory=list)
    step_ms: list[float] = field(default_factory=list)
    work_ns: list[float] = field(default_factory=list)


def measure(kit: Kit) -> None:
    kinds = list(made(kit))
    measured: dict[tuple[str, str], Measured] = {}
    for repeat in range(REPEATS):
        began = time.monotonic()
        for kind in kinds:
            carry_out(kit, kind, repeat, measured)
        if kit.left_s < 1.3 * (time.monotonic() - began):  # Half of a second round would be worth nothing.
            break
    errors = [error for kind in kinds for error in show_kind(kit, kind, measured)]
    if errors:
        kit.show("what_if_error_median", median(errors), "%", cases=len(errors))
        kit.show("what_if_error_worst", max(errors), "%", cases=len(errors))


def made(kit: Kit) -> list[Kind]:
    """The jobs, each with its changes."""
    both = [one_process(kit, kind, filtered) for kind, filtered in kit.pick(cuda=_FILTERED_CUDA, cpu=_FILTERED_CPU)]
    buckets = (Change("buckets of 25 MB", ("--bucket-mb", "25"), "bucket_mb=25"),)
    shared = (*size(kit, SHARED), "--bucket-mb", kit.pick(cuda="1", cpu="0.02"))
    return [*both, Kind(SHARED, shared, buckets, ranks=2, flags=("--shapes",))]


_FILTERED_CUDA = ((LARGE, 1 << 27), (SMALL, 1 << 20))
"""Elements of the kernel that becomes slower: 1 GB to read and write each of its 16 times, and 8 MB. Twice as many still
have offsets of 32 bits, or there would be two kernels."""
_FILTERED_CPU = ((LARGE, 1 << 15), (SMALL, 1 << 9))


def one_process(kit: Kit, kind: str, filtered: int) -> Kind:
    plain = size(kit, kind)
    of = dict(zip(plain[::2], map(int, plain[1::2]), strict=True))
    # On a CPU, what computes is the host.
    device, all_of_it = kit.pick(cuda=("gpu={}x", "gpu={}x,host=0.5x"), cpu=("cpu={}x", "cpu={}x"))
    changes = (
        Change("slower kernel", ("--filter", str(2 * filtered)), "kernel[atan]=0.5x"),
        Change("twice the batch", ("--batch", str(2 * of["--batch"])), device.format(0.5), device),
        Change("twice the layers", ("--layers", str(2 * of["--layers"])), all_of_it.format(0.5), all_of_it),
        Change("no wait for the loss", ("--unsynced",), "sync=0"),
    )
    return Kind(kind, (*plain, "--filter", str(filtered)), changes)


def carry_out(kit: Kit, kind: Kind, repeat: int, measured: dict[tuple[str, str], Measured]) -> None:
    """Record a job as it is and with each of its changes made."""
    for change in (Change(AS_IT_IS, (), ""), *kind.changes):
        job = kit.job("train", *kind.arguments, *change.arguments)
        run = kit.record(slug(f"{kind.name} {change.name} {repeat}"), job, *kind.flags, ranks=kind.ranks)
        of = measured.setdefault((kind.name, change.name), Measured())
        of.runs.append(run)
        of.step_ms.append(mean_step_ms(run))
        of.work_ns.append(work_ns(kit, run))


def work_ns(kit: Kit, run: Run) -> float:
    """What the device works in a step, ns: its kernels, or a CPU's operations, of which those within others count too."""
    events = in_window(run)
    worked = events.where(events.is_kind(kit.pick(cuda="kernel", cpu="op")))
    return float(worked.ints("dur_ns").sum() / steps_in(events))


def show_kind(kit: Kit, kind: Kind, measured: dict[tuple[str, str], Measured]) -> list[float]:
    """Print each change of a job; returns the errors, %, of those that were answered."""
    before = measured[kind.name, AS_IT_IS]
    errors = []
    for change in kind.changes:
        after = measured[kind.name, change.name]
        said = verdict(kind.name, change.what_if, before, after)
        errors += show_verdict(kit, "what_if_error", change, said)
        if change.given_work and mean(after.work_ns):
            speed = mean(before.work_ns) / mean(after.work_ns)
            given = verdict(kind.name, change.given_work.format(rounded(speed)), before, after)
            show_verdict(kit, "what_if_error_given_work", change, given)
    return errors


def verdict(kind: str, spec: str, before: Measured, after: Measured) -> Verdict:
    """What each recording of the job as it is says, against the steps of the job with the change."""
    said = [ask_run(run, spec) for run in before.runs]
    answers = [one for one in said if not isinstance(one, str)]
    return Verdict(kind, spec, before.step_ms, after.step_ms, answers, [one for one in said if isinstance(one, str)])


def ask_run(run: Run, spec: str):
    assert run.path is not None
    return ask(run.path, [spec])[spec]


def show_verdict(kit: Kit, name: str, change: Change, said: Verdict) -> Sequence[float]:
    """Print one; returns its error, %, or nothing where the what-if was refused."""
    about = {"job": said.kind, "change": change.name, "what_if": said.spec}
    about |= {"before_ms": rounded(mean(said.before)), "after_ms": rounded(mean(said.after))}
    if not said.answers:
        kit.show("refused", len(said.reasons), "answers", **about, reasons=sorted(set(said.reasons)))
        return []
    about |= {"predicted_ms": rounded(mean(answer.predicted for answer in said.answers))}
    about |= {"noise_pct": rounded(said.noise_pct), "repeats": len(said.after)}
    about |= {"steps_held": said.steps_held, "gains_held": said.gains_held}
    errors = [100 * (one.predicted / mean(said.after) - 1) for one in said.answers]
    kit.print_figure(name, said.error_pct, "%", {"low": rounded(min(errors)), "high": rounded(max(errors))}, about)
    return [abs(said.error_pct)]
