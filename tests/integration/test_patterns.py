"""`esprof record` around the training loops that people write: each is recorded whole, replays, and does not notice."""

from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from esprof import Run
from esprof.analyzers.finding import ACTIVITIES
from esprof.analyzers.views.breakdown import breakdown
from esprof.replay.replayed import Replayed
from esprof.run.run import Window
from esprof.run.schema import Table
from tests.cases.marks import flight_recorder_of_gloo, soak
from tests.cases.record import JOBS, Ended, job, ranks, record, run

pytestmark = pytest.mark.integration

ON_TWO_RANKS = (
    "accumulation",
    "adversarial",
    "amp",
    "closure",
    "compiled",
    "ddp",
    "fsdp",
    "inference",
    "lightning",
    "stream",
    "trainer",
    "validation",
    "zipped",
)
IN_ONE_PROCESS = ("ddp", "in_backward")
WITH_A_PROFILER_OF_THEIR_OWN = ("profiled_after", "profiled_before", "profiled_within")

LIKE_OTHERS = (*((name, 2) for name in ("adversarial", "amp", "closure", "ddp", "trainer", "validation")), ("ddp", 1))
"""Patterns that the recorder sees much as it sees another one."""

ON_EVERY_TORCH = ("accumulation", "compiled", "fsdp", "in_backward")
NOT_WITH_THIS_TORCH = {"fsdp"} if tuple(map(int, torch.__version__.split(".")[:2])) < (2, 8) else set()
"""Patterns that do not run, recorded or not: before 2.8 gloo scatters no sums."""

STEPS, MORE_STEPS = 12, 28
ONE_WINDOW = {"skip": 2, "warmup": 1, "steps": 6, "stack_steps": 0}
TIMED = Window(first=3, last=8)
TWO_WINDOWS = ONE_WINDOW | {"every": 14}
SECOND = Window(first=17, last=22)

GRADIENTS = 4 * (128 * 256 + 256 + 256 * 256 + 256 + 256 * 16 + 16)
"""Bytes."""


@dataclass(frozen=True)
class Pattern:
    """One way to train, recorded."""

    name: str
    ranks: list[int]
    ended: Ended
    run: Run
    replayed: Replayed
    plain: list[str]
    """What it prints when it is not recorded."""


@pytest.fixture(scope="module")
def variables(tmp_path_factory) -> dict[str, str]:
    """What is compiled is kept, so that it is compiled once."""
    return {"TORCHINDUCTOR_CACHE_DIR": str(tmp_path_factory.mktemp("inductor"))}


@pytest.fixture(scope="module")
def plain(variables) -> dict[tuple[str, int], list[str]]:
    """The lines that each pattern prints where nothing records, by its name and the number of ranks."""
    jobs = (
        (2, started(2, "pattern_job.py", STEPS, *(name for name in ON_TWO_RANKS if name not in NOT_WITH_THIS_TORCH))),
        (2, started(2, "pattern_job.py", MORE_STEPS, *WITH_A_PROFILER_OF_THEIR_OWN)),
        (1, started(1, "pattern_job.py", STEPS, *IN_ONE_PROCESS)),
    )
    found: dict[tuple[str, int], list[str]] = {}
    for count, command in jobs:
        ended = run(command, **variables)
        assert ended.code == 0, ended.stderr
        for line in sorted(ended.stdout.splitlines()):
            found.setdefault((line.split()[0], count), []).append(line)
    return found


def started(count: int, script: str, *arguments: object) -> list[str]:
    return ranks(count, JOBS / script, *arguments) if count > 1 else job(script, *arguments)


def recorded(name: str, count: int, length: int, plain, variables, folder, **options: int) -> Pattern:
    """So many steps of it on `count` ranks."""
    ended = record(folder / "run", started(count, "pattern_job.py", length, name), variables, **options)
    assert ended.code == 0, ended.stderr
    found = ended.run
    replayed = Replayed.of(found)
    # Here, and not in a test alone: what fails in a fixture is recorded anew at the second try.
    assert np.abs(replayed.error_pct).max() <= 2, replayed.error_pct
    return Pattern(name, list(range(count)), ended, found, replayed, plain[name, count])


def case(pattern: tuple[str, int]):
    name = f"{pattern[0]}-{pattern[1]}"
    marks = [pytest.mark.compat("replay")] if pattern[0] in ON_EVERY_TORCH else []
    if pattern[0] in NOT_WITH_THIS_TORCH:
        marks.append(pytest.mark.skip(reason="torch itself cannot do it"))
    return soak(pattern, id=name) if pattern in LIKE_OTHERS else pytest.param(pattern, id=name, marks=marks)


@pytest.fixture(
    scope="module",
    params=[case((name, 2)) for name in ON_TWO_RANKS] + [case((name, 1)) for name in IN_ONE_PROCESS],
)
def pattern(request, plain, variables, tmp_path_factory) -> Pattern:
    name, count = request.param
    return recorded(name, count, STEPS, plain, variables, tmp_path_factory.mktemp(name), **ONE_WINDOW)


def test_the_losses_stay_the_same_to_the_bit(pattern):
    assert sorted(pattern.ended.stdout.splitlines()) == pattern.plain
    assert len(pattern.plain) >= STEPS * len(pattern.ranks)


def test_every_rank_has_its_window_and_nothing_is_missing(pattern):
    assert pattern.run.ranks == pattern.ranks
    assert pattern.ended.warnings == []
    for rank in pattern.ranks:
        assert pattern.run.rank(rank).windows == (TIMED,)
        events = pattern.run.events(rank)
        assert events.where(events.is_kind("step")).ints("step").tolist() == list(range(3, 9))


def test_replay_reproduces_every_steady_state_step(pattern):
    assert pattern.replayed.steps.steady == (4, 5, 6, 7, 8)
    assert np.abs(pattern.replayed.error_pct).max() <= 2
    assert pattern.replayed.built.unmatched == dict.fromkeys(pattern.ranks, 0)


def test_the_breakdown_sums_to_the_step(pattern):
    for rank in breakdown(pattern.replayed):
        assert sum(getattr(rank, part) for part in ACTIVITIES) == pytest.approx(rank.step_us, abs=0.01)


@flight_recorder_of_gloo
def test_the_run_shows_what_is_special_about_the_pattern(pattern):
    SIGNS[pattern.name](pattern)


def in_timed_steps(pattern: Pattern) -> Table:
    """The events of rank 0 that began in the six timed steps."""
    events = pattern.run.events(0)
    return events.where(events.ints("step") >= TIMED.first)


def collectives(pattern: Pattern) -> Counter[str]:
    """What rank 0 took part in."""
    events = in_timed_steps(pattern)
    return Counter(events.where(events.is_kind("collective")).texts("collective"))


def occurrences(pattern: Pattern, *names: str) -> list[int]:
    """How often each of `names` stands among the events."""
    counts = Counter(in_timed_steps(pattern).texts("name"))
    return [counts[name] for name in names]


def stages(pattern: Pattern, kind: str, name: str | None = None):
    found = pattern.run.stages(0).to_pandas()
    return found[(found.kind == kind) & ((found["name"] == name) if name else found["name"].isna())]


def reduces_once_a_step(pattern: Pattern) -> None:
    """However many passes a step has, its gradients are reduced in two buckets; of one process they are not at all."""
    assert collectives(pattern) == ({"all_reduce": 2 * 6} if len(pattern.ranks) > 1 else {})
    sizes = set(in_timed_steps(pattern).ints("in_bytes").tolist()) - {-1}
    assert sum(sizes) == (GRADIENTS if len(pattern.ranks) > 1 else 0)


def accumulates(pattern: Pattern) -> None:
    reduces_once_a_step(pattern)
    assert occurrences(pattern, "DistributedDataParallel.forward", "Optimizer.step#AdamW.step") == [3 * 6, 6]


def trains_and_evaluates(pattern: Pattern) -> None:
    """Two micro-batches a step; of the timed steps two begin with an evaluation on three batches, and all are clipped."""
    reduces_once_a_step(pattern)
    assert occurrences(pattern, "DistributedDataParallel.forward", "aten::_foreach_norm") == [2 * 6 + 2 * 3, 6]


def steps_by_the_first_optimizer(pattern: Pattern) -> None:
    assert pattern.run.steps(0).ints("step").tolist() == list(range(1, STEPS))
    assert occurrences(pattern, "Optimizer.step#AdamW.step") == [2 * 6]


def casts(pattern: Pattern) -> None:
    """Two layers' weights and inputs are cast to half precision: more copies than the optimizer makes alone."""
    reduces_once_a_step(pattern)
    assert occurrences(pattern, "aten::_to_copy")[0] > occurrences(pattern, "aten::addmm")[0]


def evaluates_again_and_again(pattern: Pattern) -> None:
    assert collectives(pattern)["all_reduce"] > 2 * 6
    assert occurrences(pattern, "Optimizer.step#LBFGS.step") == [6]


def runs_compiled(pattern: Pattern) -> None:
    assert collectives(pattern) == {"all_reduce": 6}
    assert occurrences(pattern, "aten::linear") == [0]


def gathers_and_scatters(pattern: Pattern) -> None:
    """Three layers are gathered once for each pass, and reduced, for which gloo has but an all-reduce."""
    assert collectives(pattern) == {"all_gather": 6 * 6, "all_reduce": 3 * 6}


def steps_inside_backward(pattern: Pattern) -> None:
    """Six parameters, six optimizers, one step."""
    assert occurrences(pattern, "Optimizer.step#SGD.step") == [6 * 6]


def names_its_stages(pattern: Pattern) -> None:
    """In the rank, in its worker, and among the profiler's events."""
    pid = pattern.run.rank(0).pid
    assert set(stages(pattern, "stage", "classify").pid) == {pid}
    decoded = stages(pattern, "part", "decode")
    assert len(decoded) == len(stages(pattern, "fetch"))
    assert set(decoded.pid) == set(stages(pattern, "fetch").pid) != {pid}
    assert occurrences(pattern, "classify") == [6]


def takes_no_samples_to_validate(pattern: Pattern) -> None:
    assert set(pattern.run.steps(0).ints("samples").tolist()) <= {64, -1}
    assert len(set(stages(pattern, "next").loader)) == 1 + STEPS // 3


def takes_from_two_loaders(pattern: Pattern) -> None:
    assert set(stages(pattern, "next").loader) == {0, 1}
    assert len(set(stages(pattern, "fetch").loader)) == 1


def takes_from_a_stream(pattern: Pattern) -> None:
    taken = stages(pattern, "next")
    assert taken.batch.tolist() == list(range(STEPS))
    assert set(taken.samples) == {64}


SIGNS = {
    "accumulation": accumulates,
    "adversarial": steps_by_the_first_optimizer,
    "amp": casts,
    "closure": evaluates_again_and_again,
    "compiled": runs_compiled,
    "ddp": reduces_once_a_step,
    "fsdp": gathers_and_scatters,
    "in_backward": steps_inside_backward,
    "inference": names_its_stages,
    "lightning": reduces_once_a_step,
    "stream": takes_from_a_stream,
    "trainer": trains_and_evaluates,
    "validation": takes_no_samples_to_validate,
    "zipped": takes_from_two_loaders,
}


# A job that profiles itself


@pytest.mark.parametrize(
    ("name", "windows", "codes"),
    [
        soak("profiled_before", (SECOND,), {"windows-lost"}),
        ("profiled_within", (Window(first=3, last=4), SECOND), {"profiler-taken", "window-short"}),
        soak("profiled_after", (TIMED, SECOND), set()),
    ],
)
def test_the_job_may_use_the_profiler_itself(name, windows, codes, plain, variables, tmp_path):
    """The recorder yields, says where, and takes the windows planned for later, whatever the job's profiler counts."""
    pattern = recorded(name, 2, MORE_STEPS, plain, variables, tmp_path, **TWO_WINDOWS)
    assert sorted(pattern.ended.stdout.splitlines()) == pattern.plain
    assert {warning.code for warning in pattern.ended.warnings} == codes
    for rank in (0, 1):
        assert pattern.run.rank(rank).windows == windows
        events = pattern.run.events(rank)
        marked = events.where(events.is_kind("step")).ints("step").tolist()
        assert marked == [step for window in windows for step in range(window.first, window.last + 1)]
    longest = max(windows, key=lambda window: (window.last - window.first, window.first))
    assert pattern.replayed.steps.steady == tuple(range(longest.first + 1, longest.last + 1))
    assert np.abs(pattern.replayed.error_pct).max() <= 2


# Recording from the job's own code


@pytest.mark.parametrize("count", [soak(1), 2])
def test_a_job_may_record_itself(count, plain, tmp_path):
    ended = run(started(count, "pattern_recorded.py", tmp_path / "run"), tmp_path / "run")
    assert ended.code == 0, ended.stderr
    assert sorted(ended.stdout.splitlines()) == plain["ddp", count]
    found = ended.run
    assert found.ranks == list(range(count))
    assert ended.warnings == []
    assert all(found.rank(rank).windows == (TIMED,) for rank in found.ranks)
    assert np.abs(Replayed.of(found).error_pct).max() <= 2


def test_a_job_that_is_started_again_leaves_its_first_run_alone(tmp_path):
    assert run(job("pattern_recorded.py", tmp_path / "run")).code == 0
    before = sorted(path.name for path in (tmp_path / "run").rglob("*"))
    again = run(job("pattern_recorded.py", tmp_path / "run"), tmp_path / "run-2")
    assert (again.code, again.run.ranks) == (0, [0])
    assert sorted(path.name for path in (tmp_path / "run").rglob("*")) == before


def test_a_job_that_records_itself_under_esprof_record_is_recorded_once(plain, tmp_path):
    ended = record(tmp_path / "run", started(2, "pattern_recorded.py", tmp_path / "inner"), **ONE_WINDOW)
    assert sorted(ended.stdout.splitlines()) == plain["ddp", 2]
    assert ended.stderr.count("`esprof record` records this job already") == 1
    assert ended.run.rank(1).windows == (TIMED,)
    assert not (tmp_path / "inner").exists()
