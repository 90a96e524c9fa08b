"""Jobs whose CPU runs ahead of its GPU: cost of a step if the GPU falls behind, and if the CPU waits for it."""

import pytest

from tests.cases.graph import Row, call, launched, op, predicted, step


def steps(cpu: float, gpu: float, count: int, waits_every: int = 0) -> list[Row]:
    """`count` steps of `cpu` µs, each with a kernel of `gpu` µs; the CPU waits for its GPU every so many steps, or never."""
    rows: list[Row] = []
    now = free = 0.0
    for n in range(count):
        begin, start = now, max(free, now + 10)
        rows += [op("aten::mm", begin, cpu), *launched("gemm", begin, start, gpu, 2 * n + 1)]
        now, free = begin + cpu, start + gpu
        if waits_every and n % waits_every == waits_every - 1:
            rows.append(call("cudaDeviceSynchronize", now, max(free + 5 - now, 5), 2 * n + 2))
            now = max(free, now) + 5
        rows.append(step(n, begin, now))
    return rows


def test_a_job_that_never_waits_pays_for_a_gpu_that_falls_behind():
    assert predicted(steps(1000, 800, 10), "gpu=0.25x") == [pytest.approx(3200, rel=0.02)]


def test_a_job_that_never_waits_pays_nothing_for_a_gpu_that_keeps_up():
    assert predicted(steps(1000, 800, 10), "gpu=0.9x", "gpu=2x") == [pytest.approx(1000), pytest.approx(1000)]


def test_the_backlog_that_a_job_builds_up_as_recorded_is_not_held_against_it():
    assert predicted(steps(1000, 1500, 10), "gpu=1x", "gpu=2x") == [pytest.approx(1000), pytest.approx(1000)]


def test_a_job_that_waits_for_its_gpu_every_third_step_does_not_pay_for_falling_behind_in_between():
    rows = steps(500, 1000, 8, waits_every=3)
    recorded, faster = predicted(rows, "cpu=1x", "cpu=2x")
    # The GPU sets the pace of six steps; of the last two, which wait for nothing, the CPU does.
    assert recorded == pytest.approx((2 * 3000 + 2 * 500) / 8, rel=0.02)
    assert faster == pytest.approx((2 * 3000 + 2 * 250) / 8, rel=0.02)
