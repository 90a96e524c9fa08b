"""ESP301, ESP302 and ESP303: exposed communication, small collectives, gradients sent after the backward pass."""

import numpy as np
import pytest

from esprof.analyzers import diagnose
from esprof.replay import answer
from esprof.replay.whatif.communication.links import line
from esprof.run.run import Run
from esprof.run.schema import SAMPLES, table
from tests.cases import gloo_buckets, nccl_buckets
from tests.cases.findings import ungrouped
from tests.cases.gloo_buckets import ELEMENTS, EVALUATE, GRADIENT, MS, gloo_collective
from tests.cases.graph import EPOCH_NS, op, run_of, step
from tests.cases.step_runs import step_table

LINE, MILLISECOND = "train.py(40): main", 1_000_000
FIXED_MS = 0.5
BACKWARD_MS = 25.0


def job(sizes, *, backward=True, apart_ms=0.0, ms_per_mib=1.0):
    """5 ms of forward and `BACKWARD_MS` of backward pass, then a blocking all-reduce of each of `sizes`, MiB.

    Each takes half a millisecond plus the time for its bytes, and is followed by an operation of `apart_ms`.
    """
    gradient = EVALUATE + GRADIENT if backward else "aten::linear"
    rows, now = [op("aten::linear", 0, 5 * MS), op(gradient, 5 * MS, BACKWARD_MS * MS)], (5 + BACKWARD_MS) * MS
    for size in sizes:
        took = (FIXED_MS + size * ms_per_mib) * MS
        rows += gloo_collective(now, now + 45, took, int(size * ELEMENTS))
        now += took + 50
        if apart_ms:
            rows.append(op("aten::linear", now, apart_ms * MS))
            now += apart_ms * MS
    rows.append(op("Optimizer.step", now, 5 * MS))
    return run_of({rank: [step(1, 0, now + 5 * MS), *rows] for rank in (0, 1)})


def of_communication(run):
    return {finding.id: finding for finding in ungrouped(run) if finding.id.startswith("ESP3")}


SMALL = [size / 64 for size in range(1, 33)]


def test_small_gradients_should_be_combined():
    found = of_communication(job(SMALL))
    assert set(found) == {"ESP301", "ESP302", "ESP303"}
    small = found["ESP302"]
    # 31 of 32 times the fixed cost of a collective.
    assert small.saving_us == pytest.approx(31 * FIXED_MS * MS, rel=0.01)
    assert small.evidence["small_collectives_per_step_and_rank"].value == 32
    assert small.evidence["fixed_cost_per_collective"].value == pytest.approx(0.5e6, rel=0.01)
    assert "one collective" in small.advice
    assert "flatten" in small.advice
    assert "smaller" not in small.advice


def test_small_collectives_beside_large_ones_with_the_same_kernel_are_priced_by_themselves():
    small = of_communication(job([*SMALL, 2, 4]))["ESP302"]
    assert small.saving_us == pytest.approx(31 * FIXED_MS * MS, rel=0.01)
    assert small.evidence["small_collectives_per_step_and_rank"].value == 32


def sampled(run, took_ms, called="distributed_c10d.py(2900): all_reduce"):
    """The run with a sample of so long in its step, at a line that calls an all-reduce."""
    stack = f"{LINE}\npython3.11/site-packages/torch/distributed/{called}"
    row = (EPOCH_NS + MILLISECOND, took_ms * MILLISECOND, 0, 1, stack)
    tables = {
        "samples": table({name: [value] for name, value in zip(SAMPLES.names, row, strict=True)}, SAMPLES),
        "steps": step_table([60], start_ns=EPOCH_NS, first=1, phase="timed"),
    }
    return Run(run.meta, lambda name, rank: tables.get(name) or run.recorded(name, rank))


@pytest.mark.parametrize(("took_ms", "is_named"), [(20, True), (10, False)])
def test_the_line_is_named_that_calls_them_for_most_of_their_time(took_ms, is_named):
    """They take 24 ms."""
    found = of_communication(sampled(job(SMALL), took_ms))
    for one in (found["ESP302"], found["ESP303"]):
        assert ("source_line" in one.evidence) == one.advice.startswith(f"The job calls them at {LINE}") == is_named


def test_the_line_is_named_that_waits_for_functional_collectives():
    found = of_communication(sampled(job(SMALL), 20, "_functional_collectives.py(1122): AsyncCollectiveTensor.wait"))
    assert LINE in found["ESP302"].evidence["source_line"].value


@pytest.mark.parametrize(("apart_ms", "is_reported"), [(0.05, True), (0.3, False)])
def test_all_reduces_in_a_row_can_be_combined_whatever_they_send(apart_ms, is_reported):
    """In the second job, an operation between two of them may compute what the second sends."""
    assert ("ESP302" in of_communication(job(SMALL, backward=False, apart_ms=apart_ms))) == is_reported


def test_compression_is_not_advised_if_latency_dominates():
    assert not any("lower precision" in finding.advice for finding in diagnose(job(SMALL)).findings)


@pytest.mark.parametrize(
    ("sizes", "how"),
    [
        ([1 + size for size in SMALL], {}),  # large
        (SMALL[:6], {}),  # few
        (SMALL, {"ms_per_mib": 50.0}),  # bandwidth dominates
        (SMALL, {"backward": False, "apart_ms": 2.0}),  # activations: each is needed before the next one
        ([0.25] * 32, {}),  # one size only: no linear fit
        ([0.25 + size for size in SMALL], {}),  # sizes that differ no more than times of collectives do by chance
    ],
)
def test_collectives_that_cannot_be_combined_or_are_not_dominated_by_latency_are_not_reported(sizes, how):
    assert "ESP302" not in of_communication(job(sizes, **how))


def test_small_collectives_of_one_size_are_mentioned_by_the_general_finding():
    exposed = of_communication(job([0.25] * 32, backward=False))["ESP301"]
    assert "combine them" in exposed.advice


def test_small_buckets_between_gpus_are_priced_as_larger_ones():
    sizes = [0.25, 0.5] * 10
    run = run_of(
        {rank: nccl_buckets.ddp_step(sizes, [1] * 20, compute_ms=0.01, communication_ms=0.01) for rank in (0, 1)}
    )
    small = of_communication(run)["ESP302"]
    assert "bucket_mb=" in small.command
    # Twenty collectives of a little more than 0.1 ms, or a single one, after a backward pass of 1 ms.
    assert 900 < small.saving_us < 1_000


@pytest.mark.parametrize("module", [gloo_buckets, nccl_buckets])
def test_a_single_bucket_of_all_gradients_is_late(module):
    late = of_communication(module.run_with((2, 2, 2, 2), (4,)))["ESP303"]
    (best,) = answer(module.run_with((2, 2, 2, 2), (4,)), ["bucket_mb=2"]).what_if
    assert late.saving_us >= best.saving_us - 1
    assert late.evidence["sent_after_last_gradient"].value == 1
    assert late.evidence["largest_share"].value == 1
    assert "bucket_cap_mb" in late.advice


@pytest.mark.parametrize("module", [gloo_buckets, nccl_buckets])
def test_buckets_sent_as_soon_as_they_are_ready_are_not_late(module):
    found = of_communication(module.run_with((2, 2, 2, 2), (1, 1, 1, 1)))
    assert set(found) == {"ESP301"}
    # The link is busy all the time, so nothing could be sent earlier.
    assert "start collectives earlier" not in found["ESP301"].advice


def test_gradients_that_the_job_sends_after_the_backward_pass_have_an_upper_bound():
    late = of_communication(job([8]))["ESP303"]
    assert late.command.endswith("overlap=perfect")
    assert "an upper bound" in late.advice
    assert "sends its gradients after the backward pass" in late.advice


@pytest.mark.parametrize(
    ("sizes", "how"),
    [
        ([8], {"ms_per_mib": 0.01}),  # short
        ([0.05], {"ms_per_mib": 50.0}),  # too small for several buckets
        ([0.0005], {"ms_per_mib": 50_000.0}),  # takes long, but not because of its size
        ([8], {"backward": False}),  # no gradients
    ],
)
def test_late_collectives_that_smaller_buckets_would_not_help_are_not_reported(sizes, how):
    assert "ESP303" not in of_communication(job(sizes, **how))


def test_a_specific_cause_that_explains_most_of_it_replaces_the_general_one():
    assert "ESP301" not in {one.id for one in diagnose(job([8])).findings}
    both = of_communication(job([8, 8.5], backward=False))
    assert set(both) == {"ESP301"}


def test_gradients_that_do_not_fit_into_the_backward_pass_are_the_links_loss():
    """A backward pass of 25 ms hides at most that of 40.5 ms, whenever they are sent."""
    assert [one.id for one in diagnose(job([40])).findings] == ["ESP301"]


@pytest.mark.parametrize(("sizes", "buckets", "is_late"), [((0.4, 0.4, 0.4, 0.4), (4,), True), ((1, 7), (1, 1), False)])
def test_gradients_are_late_only_if_the_link_idled_while_they_could_have_been_sent(sizes, buckets, is_late):
    """In the second job, the first bucket is on the link until the last gradient is ready."""
    assert ("ESP303" in of_communication(gloo_buckets.run_with(sizes, buckets, shapes=False))) == is_late


def test_a_linear_fit_has_no_negative_slope_or_intercept():
    falling = line(np.array([1, 2, 4]), np.array([30.0, 20.0, 10.0]))
    assert falling is not None
    assert (falling.fixed_ns, falling.ns_per_byte, falling.least_ns) == (20, 0, 10)
    through_zero = line(np.array([10, 20, 40]), np.array([9.0, 21.0, 45.0]))
    assert through_zero is not None
    assert through_zero.fixed_ns == 0
    assert line(np.array([10, 12]), np.array([1.0, 2.0])) is None
