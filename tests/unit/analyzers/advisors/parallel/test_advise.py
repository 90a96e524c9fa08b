"""Advice on the split of a model: plans are priced by replay, and can be computed again."""

import msgspec
import pytest

from esprof.analyzers.advisors.job.growth import Model
from esprof.analyzers.advisors.parallel.advise import ParallelAdvice, advise_parallel, check_parallel
from esprof.analyzers.advisors.parallel.profile import Devices, LayerProfile
from esprof.core.errors import EsprofError, MismatchError, UsageError
from esprof.replay.schedules.pipeline import PipelineSchedule
from tests.cases.layers import layer

_FOUR = LayerProfile(layers=tuple(layer(name, parameter_bytes=10**6) for name in "abcd"), microbatch=2)


def _two(memory_gb: float | None = None) -> Devices:
    return Devices(devices={"V100": Model(count=2, memory_gb=memory_gb)}, network_gb_per_s=0.1)


def test_a_slow_network_makes_a_pipeline_best() -> None:
    advice = advise_parallel(_FOUR, _two(), 16)
    best, of_one = advice.plans[0], next(plan for plan in advice.plans if plan.chunks == 1)
    # ZB1P with equal passes: 8 microbatches of 60 µs, and one pass of the other rank, of 20 µs or half of that.
    for plan, idle_us in ((best, 10), (of_one, 20)):
        assert (plan.schedule, plan.step_us) == ("zb1p", 8 * 60 + idle_us)
        assert plan.gap_pct == pytest.approx(100 * idle_us / 480, abs=1e-3)
        assert plan.idle_pct == pytest.approx(100 * idle_us / plan.step_us, abs=1e-3)
        assert plan.rectangular
    assert [(stage.first, stage.last, stage.replicas) for stage in of_one.stages] == [("a", "b", 1), ("c", "d", 1)]
    assert best.chunks == 2
    assert advice.lower_bound_us == pytest.approx(8 * 60)
    assert advice.one_stage is not None
    assert advice.one_stage.step_us == 8 * 120


def test_without_times_for_weights_no_schedule_splits_the_backward() -> None:
    layers = tuple(
        msgspec.structs.replace(one, times={"any": msgspec.structs.replace(one.times["V100"], weights_us=None)})
        for one in _FOUR.layers
    )
    advice = advise_parallel(msgspec.structs.replace(_FOUR, layers=layers), _two(), 16)
    assert (advice.plans[0].schedule, advice.plans[0].step_us) == ("interleaved", 8 * 60 + 30)
    assert advice.warnings == ("no zero-bubble schedule: the profile has no weights_us",)


def test_memory_forces_a_split_or_is_too_small() -> None:
    # Two layers have 8 MB of weights, gradients and optimizer state.
    advice = advise_parallel(_FOUR, _two(0.008), 16)
    assert advice.one_stage is None
    assert all(stage.memory_bytes <= 8_000_000 for plan in advice.plans for stage in plan.stages)
    with pytest.raises(EsprofError, match="does not fit into the memory"):
        advise_parallel(_FOUR, _two(0.007), 16)


def test_a_batch_or_type_that_the_profile_does_not_have_is_refused() -> None:
    with pytest.raises(UsageError, match="a batch of 15 is not a multiple of the profile's microbatch of 2"):
        advise_parallel(_FOUR, _two(), 15)
    with pytest.raises(UsageError, match="500,000,000 microbatches: at most 10,000 are allowed"):
        advise_parallel(_FOUR, _two(), 10**9)
    unnamed = LayerProfile(layers=(layer("a", kind="any"),))
    with pytest.raises(UsageError, match="names no type of device, but the inventory has 2"):
        advise_parallel(unnamed, Devices(devices={"V100": 1, "P100": 1}, network_gb_per_s=1.0), 16)
    with pytest.raises(UsageError, match="layer a has no time on P100"):
        advise_parallel(_FOUR, Devices(devices={"V100": 1, "P100": 1}, network_gb_per_s=1.0), 16)


def test_advice_read_again_is_verified_and_a_changed_one_is_not() -> None:
    advice = msgspec.json.decode(msgspec.json.encode(advise_parallel(_FOUR, _two(), 16)), type=ParallelAdvice)
    check_parallel(advice)
    with pytest.raises(MismatchError, match="lower_bound_us differs"):
        check_parallel(msgspec.structs.replace(advice, lower_bound_us=1.0))


def test_replicas_of_one_server_use_its_link() -> None:
    """Through the network, an all-reduce of a layer takes 10 ms; in a server, 10 µs."""
    layers = tuple(layer(str(number), parameter_bytes=10**6) for number in range(2))
    devices = Devices(devices={"V100": 4}, network_gb_per_s=0.1, server_gb_per_s=100.0, per_server=2)
    best = advise_parallel(LayerProfile(layers=layers), devices, 8).plans[0]
    assert [stage.replicas for stage in best.stages] == [2, 2]


def test_zbv_has_two_stages_on_each_rank_the_second_half_in_the_opposite_order() -> None:
    (zbv,) = (plan for plan in advise_parallel(_FOUR, _two(), 16).plans if plan.schedule == PipelineSchedule.ZBV)
    assert zbv.step_us == 8 * 60 + 10
    assert zbv.torch is not None
    assert (zbv.torch.schedule, zbv.torch.stages_of_rank) == ("ScheduleZBVZeroBubble", ((0, 3), (1, 2)))
