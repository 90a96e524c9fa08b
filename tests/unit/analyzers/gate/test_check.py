"""Samples of a run, comparability of runs, and the outcome of rules on synthetic series."""

from pathlib import Path

import msgspec
import numpy as np
import pytest
from scipy.signal import lfilter

from esprof.analyzers.gate import check as gate
from esprof.analyzers.gate.baseline import Baseline, RunIdentity, choose_phase, decode, measure
from esprof.analyzers.gate.check import Options, check
from esprof.analyzers.gate.rules import MAX_RUNS, parse_rule
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.core.errors import InputError, MismatchError, UsageError
from esprof.core.types import NS_PER_MS
from esprof.reports.terminal.check import render_text, sentence
from tests.cases import step_runs
from tests.cases.step_runs import step_table

IDENTITY = RunIdentity(world_size=2, hosts=1, devices={0: "H100", 1: "H100"}, versions={"torch": "2.13.0"})


def baseline(step_ms, *, identity=IDENTITY, phase="plain", **metrics) -> Baseline:
    samples = {"step_time": tuple(float(ms) * NS_PER_MS for ms in step_ms)} | metrics
    return Baseline(identity=identity, phase=phase, samples=samples)


def noisy(n=100, *, scale=1.0, noise=0.02, seed=0):
    return 100 * scale * np.exp(noise * np.random.default_rng(seed).standard_normal(n))


def gated(before, now, *rules, **options):
    rules = tuple(parse_rule(rule) for rule in rules or ("step_time:+5%",))
    return check(before, now, Options(rules=rules, **options))


# Samples


def test_step_time_is_from_the_last_start_to_the_last_end():
    early = step_table([10, 10, 10], start_ns=0)
    late = step_table([12, 10, 9], start_ns=1 * NS_PER_MS)
    measured = measure(JobSteps(step_runs.run(early, late)), "plain")
    # Ends of rank 0: 10, 20, 30 ms; of rank 1: 13, 23, 32 ms. The first step is left out.
    assert measured.samples["step_time"] == (10 * NS_PER_MS, 9 * NS_PER_MS)


def test_steps_count_only_if_every_rank_has_the_phase():
    phases = ["plain", "plain", "export", "timed", "stack", "plain", "plain"]
    other = ["plain", "plain", "export", "timed", "stack", "warmup", "plain"]
    run = step_runs.run(step_table(range(1, 8), phase=phases), step_table(range(1, 7), phase=other[:6]))
    assert measure(JobSteps(run), "plain").samples["step_time"] == (2 * NS_PER_MS,)
    assert measure(JobSteps(run), "timed").samples["step_time"] == (4 * NS_PER_MS,)


def test_unrecorded_metrics_are_absent():
    assert set(measure(JobSteps(step_runs.run(step_table([1, 1]))), "plain").samples) == {"step_time"}


def test_rates_are_summed_over_ranks_and_loader_wait_is_the_maximum():
    slow = step_table([500] * 3, samples=[8, 8, 8], tokens=[None, 80, 80], loader_wait_ns=[0, 5, None])
    fast = step_table([500] * 3, samples=[8, 8, 4], tokens=[80, 80, 80], loader_wait_ns=[0, 7, 7])
    samples = measure(JobSteps(step_runs.run(slow, fast)), "plain").samples
    assert samples["samples_per_s"] == (32.0, 24.0)
    assert samples["tokens_per_s"] == (320.0, 320.0)
    assert samples["loader_wait"] == (7.0,)


def test_plain_steps_are_preferred_if_there_are_enough():
    run = step_runs.run(step_table([1] * 12, phase=["plain"] * 6 + ["timed"] * 6))
    assert choose_phase(JobSteps(run), 5) == "plain"
    assert choose_phase(JobSteps(run), 6) == "timed"


def test_a_run_without_steps_of_the_phase_is_rejected():
    with pytest.raises(MismatchError, match="no plain steps"):
        measure(JobSteps(step_runs.run(step_table([1] * 5, phase="timed"))), "plain")


def test_cpu_wait_is_the_maximum_over_ranks():
    first, second = step_table([500] * 3, ready_ns=[0, 5, 9]), step_table([500] * 3, ready_ns=[0, 7, None])
    assert measure(JobSteps(step_runs.run(first, second)), "plain").samples["cpu_wait"] == (7.0,)


# The baseline file


def test_a_baseline_round_trips_through_its_file():
    measured = measure(JobSteps(step_runs.run(step_table([3, 4, 5]), step_table([3, 4, 5]))), "plain")
    assert decode(msgspec.json.encode(measured), Path("base.json")) == measured
    assert measured.identity.devices == {0: "NVIDIA H100", 1: "NVIDIA H100"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"", "not an esprof baseline"),
        (b"\xff\xfe", "not an esprof baseline"),
        (b'{"schema": "esprof.baseline/1"', "not an esprof baseline"),
        (b'{"traceEvents": []}', "not an esprof baseline"),
        (b'{"schema": "esprof.baseline/99"}', "esprof.baseline/99"),
        (b'{"schema": "esprof.baseline/1", "phase": "plain"}', "identity"),
        (msgspec.json.encode(baseline([])), "without samples"),
        (msgspec.json.encode(baseline([1])).replace(b"step_time", b"other"), "without samples"),
        (msgspec.json.encode(baseline([1])).replace(b'"plain"', b'"stack"'), "stack"),
    ],
)
def test_an_invalid_baseline_file_is_rejected(content, reason):
    with pytest.raises(InputError, match=reason) as caught:
        decode(content, Path("base.json"))
    assert str(caught.value).startswith("base.json: ")
    assert "--save-baseline" in str(caught.value)


def test_a_baseline_retains_its_latest_runs():
    history = baseline([100] * 5)
    for number in range(1, 25):
        history = history.with_run(baseline([100 + number] * 5))
    assert len(history.runs) == MAX_RUNS
    assert [samples["step_time"][0] / NS_PER_MS for samples in history.runs[:2]] == [124, 123]
    assert decode(msgspec.json.encode(history), Path("base.json")) == history
    with pytest.raises(MismatchError, match="recorded in a different setting"):
        history.with_run(baseline([100] * 5, phase="timed"))


# What must not be compared


def test_every_difference_is_named():
    other = RunIdentity(
        world_size=4, hosts=2, devices={0: "H100", 1: "V100"}, versions={"torch": "2.12.0", "cuda": "12.8"}
    )
    with pytest.raises(MismatchError) as caught:
        gated(baseline(noisy()), baseline(noisy(), identity=other))
    message = str(caught.value)
    assert "world size: 2 in the baseline, 4 in this run" in message
    assert "hosts: 1 in the baseline, 2 in this run" in message
    assert "device of rank 1: H100 in the baseline, V100 in this run" in message
    assert "torch version: 2.13.0 in the baseline, 2.12.0 in this run" in message
    assert "cuda version: unknown in the baseline, 12.8 in this run" in message
    assert "rank 0" not in message


def test_plain_and_timed_steps_are_not_comparable():
    with pytest.raises(MismatchError, match="steps: plain in the baseline, timed in this run"):
        gated(baseline(noisy()), baseline(noisy(), phase="timed"))


def test_a_metric_missing_on_one_side_is_rejected():
    with pytest.raises(MismatchError, match="this run has no samples of loader_wait"):
        gated(baseline(noisy(), loader_wait=(1.0,) * 20), baseline(noisy()), "loader_wait:+1ms")


# Rules


@pytest.mark.parametrize("text", ["step_time:+5%", "step_time:+3ms", "loader_wait:+0.5s", "tokens_per_s:-2.5%"])
def test_rules_round_trip_through_text(text):
    assert str(parse_rule(text)) == text


def test_the_sign_of_a_rule_is_optional():
    assert parse_rule("samples_per_s:5%") == parse_rule("samples_per_s:-5%")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("step_time", "METRIC:LIMIT"),
        ("step_time:+five%", "METRIC:LIMIT"),
        ("latency:+5%", "step_time, loader_wait, cpu_wait, samples_per_s, tokens_per_s"),
        ("step_time:+5kg", "%, us, ms, s"),
        ("tokens_per_s:-5ms", "Known units: %"),
        ("samples_per_s:+5%", "samples_per_s:-5%"),
        ("step_time:-5%", "step_time:+5%"),
    ],
)
def test_invalid_rules_are_rejected_with_a_remedy(text, message):
    with pytest.raises(UsageError) as caught:
        parse_rule(text)
    assert message in str(caught.value)


def test_per_cent_of_zero_is_a_usage_error():
    idle = baseline(noisy(), loader_wait=(0.0,) * 50)
    with pytest.raises(UsageError, match="0 in the baseline"):
        gated(idle, idle, "loader_wait:+5%")


# Outcomes


def test_slower_beyond_limit_and_noise_regresses():
    answer = gated(baseline(noisy(seed=1)), baseline(noisy(scale=1.08, seed=2)))
    metric, mean = answer.metrics
    assert answer.outcome == metric.outcome == mean.outcome == "regressed"
    assert metric.low < 8 < metric.high
    assert metric.change == pytest.approx(8, abs=1.5)
    assert metric.p < 0.01
    assert metric.worse_probability > 0.9
    assert metric.baseline_value == pytest.approx(100_000, rel=0.02)


def test_same_code_is_unchanged():
    answer = gated(baseline(noisy(seed=1)), baseline(noisy(seed=2)))
    assert answer.outcome == "unchanged"
    assert not answer.metrics[0].improved


def test_significant_but_within_limit_is_unchanged():
    metric, _ = gated(baseline(noisy(400, seed=1)), baseline(noisy(400, scale=1.02, seed=2))).metrics
    assert metric.p < 0.01
    assert metric.outcome == "unchanged"


def test_faster_is_unchanged_and_improved():
    metric, _ = gated(baseline(noisy(seed=1)), baseline(noisy(scale=0.9, seed=2))).metrics
    assert (metric.outcome, metric.improved) == ("unchanged", True)


def test_noise_is_inconclusive_and_advises_more_steps():
    before, now = noisy(20, noise=0.15, seed=1), noisy(20, noise=0.15, seed=2)
    metric, _ = gated(baseline(before), baseline(now)).metrics
    assert metric.outcome == "inconclusive"
    assert metric.more_steps is not None
    assert metric.more_steps.run == metric.more_steps.baseline > 0


def test_the_advised_number_of_steps_decides():
    """With the advised number of steps, the interval of the same two processes is narrow enough."""
    short, _ = gated(baseline(noisy(30, noise=0.1, seed=3)), baseline(noisy(30, noise=0.1, seed=4))).metrics
    assert short.more_steps is not None
    n = 30 + short.more_steps.run
    long, _ = gated(baseline(noisy(n, noise=0.1, seed=3)), baseline(noisy(n, noise=0.1, seed=4))).metrics
    assert long.high - long.low == pytest.approx((short.high - short.low) * (30 / n) ** 0.5, rel=0.5)


def test_too_few_steps_are_always_inconclusive():
    metric, _ = gated(baseline(noisy(40)), baseline(noisy(7, scale=2)), min_steps=10).metrics
    assert metric.outcome == "inconclusive"
    assert metric.more_steps == gate.MoreSteps(run=3, baseline=0)


def test_no_number_of_steps_is_advised_at_the_limit():
    before = noisy(noise=0.1)
    metric, _ = gated(baseline(before), baseline(before * 1.04999)).metrics
    assert metric.outcome == "inconclusive"
    assert metric.more_steps is None


# Baselines of several runs


def several(*scales, seed=100, **metrics):
    history, *later = (baseline(noisy(scale=scale, seed=seed + n), **metrics) for n, scale in enumerate(scales))
    for run in later:
        history = history.with_run(run)
    return history


APART = (0.9, 1.1, 0.95, 1.05, 1.0)
"""Runs of the same code on a shared machine."""


def test_a_change_within_what_runs_of_the_same_code_show_is_no_regression():
    run = baseline(noisy(scale=1.12, seed=2))
    assert gated(several(*APART[:3]), run).outcome == "regressed"  # Too few runs to tell.
    metric, mean = gated(several(*APART), run).metrics
    assert (metric.outcome, mean.outcome, metric.runs) == ("inconclusive", "inconclusive", 5)
    assert 25 < metric.between_runs < 50
    assert metric.more_steps is None
    assert "by how the 5 runs of the baseline differ" in sentence(metric)
    assert gated(several(*APART), baseline(noisy(scale=1.6, seed=2))).outcome == "regressed"


def test_runs_that_do_not_differ_leave_the_limit_as_it_is():
    same = several(*[1.0] * 6)
    assert gated(same, baseline(noisy(seed=2))).outcome == "unchanged"
    assert gated(same, baseline(noisy(scale=1.08, seed=2))).outcome == "regressed"


@pytest.mark.parametrize(("jobs", "most"), [(30, 2), pytest.param(100, 4, marks=pytest.mark.slow)])
def test_false_alarms_stay_below_alpha_if_runs_differ(jobs, most):
    rng = np.random.default_rng(1)
    scales = np.exp(0.08 * rng.standard_normal((jobs, 9)))
    alone = several_alarms = 0
    for number, (now, *before) in enumerate(scales.tolist()):
        run = baseline(noisy(40, scale=now, seed=10_000 + number))
        history = several(*before, seed=10 * number)
        several_alarms += gated(history, run).outcome == "regressed"
        alone += gated(baseline(history.samples["step_time"] / np.array(NS_PER_MS)), run).outcome == "regressed"
    assert several_alarms <= most  # At a level of 1 %, more have a probability of 0.3 %.
    assert alone > 0.1 * jobs


def test_throughput_regresses_downwards():
    before = baseline(noisy(), samples_per_s=tuple(noisy(seed=1)))
    slower = baseline(noisy(), samples_per_s=tuple(noisy(scale=0.9, seed=2)))
    metric, _ = gated(before, slower, "samples_per_s:-5%").metrics
    assert metric.outcome == "regressed"
    assert metric.low < metric.change < metric.high < 0
    assert metric.limit == -5
    back, _ = gated(slower, before, "samples_per_s:-5%").metrics
    assert (back.outcome, back.improved) == ("unchanged", True)


def test_absolute_rule():
    before, now = baseline(noisy(seed=1)), baseline(noisy(scale=1.04, seed=2))
    assert gated(before, now, "step_time:+2ms").outcome == "regressed"
    assert gated(before, now, "step_time:+8ms").outcome == "unchanged"


def test_the_worst_rule_decides_and_rules_share_alpha():
    before = baseline(noisy(seed=1), loader_wait=tuple(noisy(seed=2)))
    now = baseline(noisy(scale=1.1, seed=3), loader_wait=tuple(noisy(seed=4)))
    alone = gated(before, now).metrics[0]
    answer = gated(before, now, "loader_wait:+5%", "step_time:+5%")
    assert answer.outcome == "regressed"
    assert [metric.outcome for metric in answer.metrics] == ["unchanged"] * 2 + ["regressed"] * 2
    assert answer.metrics[2].p == pytest.approx(2 * alone.p)


@pytest.mark.parametrize(("scale", "regressed"), [(1.0, range(2)), (1.15, range(28, 31))])
def test_gate_on_correlated_steps(scale, regressed):
    """Of 30 pairs of runs with correlated steps, hardly any regresses without a change, and nearly all at +15 %."""
    rng = np.random.default_rng(9)
    outcomes = []
    for _ in range(30):
        noise = lfilter([0.04], [1, -0.5], rng.standard_normal((2, 160)))[:, 100:]
        before, now = 100 * np.exp(noise)
        outcomes.append(gated(baseline(before), baseline(scale * now)).outcome)
    assert outcomes.count("regressed") in regressed


def with_saves(every: int, n: int = 60, seed: int = 0):
    """Steps of 100 ms; one of `every` steps takes 300 ms longer."""
    return noisy(n, seed=seed) + np.where(np.arange(n) % every == every - 1, 300, 0)


def test_a_slowdown_every_few_steps_regresses_in_the_mean():
    answer = gated(baseline(noisy(60, seed=1)), baseline(with_saves(4, seed=2)))
    median, mean = answer.metrics
    assert answer.outcome == mean.outcome == "regressed"
    assert median.outcome != "regressed"
    assert mean.change == pytest.approx(75, abs=3)
    assert (mean.baseline_slow, mean.run_slow) == (0, 15)
    rates = [baseline(ms, samples_per_s=tuple(800 / ms)) for ms in (noisy(60, seed=1), with_saves(4, seed=2))]
    _, throughput = gated(*rates, "samples_per_s:-5%").metrics
    assert throughput.outcome == "regressed"
    assert throughput.change == pytest.approx(100 / 1.75 - 100, abs=2)


def test_a_mean_rate_is_weighted_by_time():
    """Alternating batches of 1 and 100 samples, in steps of 100 ms, are more than batches of 40."""
    alternating, constant = np.tile([1.0, 100.0], 30) * 10, np.full(60, 400.0)
    ms = np.full(60, 100.0)
    before, now = (baseline(ms, samples_per_s=tuple(of)) for of in (constant, alternating))
    _, mean = gated(before, now, "samples_per_s:-5%").metrics
    assert mean.run_value == pytest.approx(505)
    assert (mean.outcome, mean.improved) == ("unchanged", True)


def test_the_steps_advised_for_a_mean_depend_on_the_limit():
    """One step in eight takes 65 % longer: the mean is 8 % worse, but only 5 % are allowed."""
    rng = np.random.default_rng(1)

    def steps(n, share):
        return noisy(n, seed=rng) * np.where(rng.random(n) < share, 1.65, 1)

    _, short = gated(baseline(steps(60, 0)), baseline(steps(60, 1 / 8))).metrics
    assert short.outcome == "inconclusive"
    n = 60 + short.more_steps.run
    outcomes = [gated(baseline(steps(n, 0)), baseline(steps(n, 1 / 8))).metrics[1].outcome for _ in range(9)]
    assert outcomes.count("regressed") >= 2


def test_a_strict_significance_level_is_attainable():
    rules = "step_time:+5%", "step_time:+9%"
    answer = gated(baseline(noisy(60, seed=1)), baseline(noisy(60, scale=2, seed=2)), *rules, alpha=0.001)
    assert {metric.outcome for metric in answer.metrics if metric.statistic == "mean"} == {"regressed"}


def test_saves_as_frequent_as_in_the_baseline_do_not_regress():
    assert gated(baseline(with_saves(4, seed=1)), baseline(with_saves(4, seed=2))).outcome == "unchanged"


@pytest.mark.parametrize(("begins", "outcome"), [(10, "regressed"), (45, "inconclusive")])
def test_a_drift_over_most_of_the_run_is_found(begins, outcome):
    """From some step on, steps get slower and slower. A late drift may be temporary and is inconclusive."""
    drift = np.maximum(0, np.arange(70) - begins) * 2
    assert gated(baseline(noisy(70, seed=1)), baseline(noisy(70, seed=2) + drift)).outcome == outcome


def test_one_outlier_neither_causes_nor_hides_a_regression():
    one_outlier = noisy(60, seed=2)
    one_outlier[30] = 3_000
    once = gated(baseline(noisy(60, seed=1)), baseline(one_outlier))
    assert [metric.outcome for metric in once.metrics] == ["unchanged", "inconclusive"]
    slower = gated(baseline(noisy(60, seed=1)), baseline(1.1 * one_outlier))
    assert slower.metrics[0].outcome == "regressed"


@pytest.mark.slow
def test_false_positives_stay_below_alpha_with_heavy_tails():
    """200 pairs of 40 steps; one step in twenty takes three to thirty times as long."""
    rng = np.random.default_rng(11)

    def steps() -> np.ndarray:
        return noisy(40, seed=rng) * np.where(rng.random(40) < 0.05, rng.uniform(3, 30, 40), 1)

    outcomes = [gated(baseline(steps()), baseline(steps())).outcome for _ in range(200)]
    assert outcomes.count("regressed") <= 4


def test_the_result_is_deterministic():
    before, now = baseline(noisy(seed=1)), baseline(noisy(seed=2))
    assert msgspec.json.encode(gated(before, now)) == msgspec.json.encode(gated(before, now))


# Other work on the machine


def waiting(wait_ms, *, scale=1.0, seed=0, **metrics):
    """Steps of about 100 ms plus `wait_ms`, in which a rank waits for a CPU."""
    return baseline(
        noisy(200, scale=scale, seed=seed) + wait_ms, cpu_wait=(wait_ms * float(NS_PER_MS),) * 200, **metrics
    )


@pytest.mark.parametrize(
    ("wait_ms", "scale", "outcome"),
    [(30, 1.0, "inconclusive"), (30, 1.2, "regressed"), (0, 1.2, "regressed"), (30, 1.02, "inconclusive")],
)
def test_longer_waits_for_a_cpu_are_no_regression(wait_ms, scale, outcome):
    checked = gated(waiting(0), waiting(wait_ms, scale=scale, seed=1))
    assert {metric.outcome for metric in checked.metrics} == {outcome}
    for metric in checked.metrics:
        assert metric.more_cpu_wait_us == (pytest.approx(30_000) if outcome == "inconclusive" else None)


def test_an_equal_wait_in_the_baseline_explains_no_regression():
    checked = gated(waiting(30), waiting(30, scale=1.2, seed=1))
    assert checked.outcome == "regressed"


def test_a_rate_reduced_by_waits_for_a_cpu_is_no_regression():
    def rate(wait_ms, seed, scale=1.0):
        run = waiting(wait_ms, seed=seed, scale=scale)
        return msgspec.structs.replace(
            run, samples=run.samples | {"samples_per_s": tuple(32e9 / ns for ns in run.samples["step_time"])}
        )

    rule = "samples_per_s:-5%"
    assert gated(rate(0, 0), rate(30, 1), rule).outcome == "inconclusive"
    assert gated(rate(0, 0), rate(30, 1, scale=1.2), rule).outcome == "regressed"


def test_the_cpu_wait_can_be_checked_itself():
    before, now = waiting(1), waiting(30)
    assert gated(before, now, "cpu_wait:+5ms").outcome == "regressed"


def test_a_run_compared_with_itself_is_unchanged():
    run = baseline(noisy(12, noise=0.3))
    found = gated(run, run, "step_time:+1%")
    assert (found.outcome, found.is_itself) == ("unchanged", True)
    assert "a run with itself" in render_text(found)
    assert not gated(run, baseline(noisy(12, noise=0.3, seed=1)), "step_time:+1%").is_itself
