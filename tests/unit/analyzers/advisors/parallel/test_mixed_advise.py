"""Advice on pipelines that mix types of devices: plans are priced by replay, and can be computed again."""

import msgspec
import pytest

from esprof.analyzers.advisors.job.growth import Model
from esprof.analyzers.advisors.parallel.mixed.advise import MixedAdvice, advise_mixed, check_mixed
from esprof.analyzers.advisors.parallel.mixed.profile import (
    GivenPlan,
    MixedPlan,
    MixedProfile,
    MixedStage,
    Replica,
    ShardSizes,
)
from esprof.analyzers.advisors.parallel.profile import Devices
from esprof.core.errors import EsprofError, MismatchError, UsageError

_SIZES = {
    tensor: (ShardSizes(parameter_bytes=1_000_000 // tensor, output_bytes=1_000, kept_bytes=1_000 // tensor),) * 4
    for tensor in (1, 2)
}


def _profile(**fast: float) -> MixedProfile:
    """Four equal layers of 3 ms on a type of speed 1, and of half that on two of its devices."""
    return MixedProfile(
        model="tiny",
        times={
            kind: {1: {tensor: ((0.001 / speed / tensor, 0.002 / speed / tensor, 0.0),) * 4 for tensor in (1, 2)}}
            for kind, speed in fast.items()
        },
        sizes=_SIZES,
    )


def _devices(*kinds: str, count: int = 1, memory_gb: float | None = None, network: float = 1.0) -> Devices:
    models = {kind: Model(count=count, memory_gb=memory_gb) for kind in kinds}
    return Devices(devices=models, network_gb_per_s=network, per_server=2)


def test_layers_are_split_by_the_speeds_of_unlike_devices() -> None:
    advice = advise_mixed(_profile(A=3, B=1), _devices("A", "B", network=1e3), 16)
    best = advice.plans[0]
    assert sorted((stage.end - stage.first, stage.groups[0].device) for stage in best.stages) == [(1, "B"), (3, "A")]
    # 16 microbatches of 3 ms on the slower stage, and one pass of the other; links take next to nothing.
    assert best.step_us == pytest.approx(16 * 3_000 + 3_000, rel=1e-3)
    assert advice.lower_bound_us == pytest.approx(16 * 3_000)
    assert best.fits


def test_a_fast_network_shares_layers_and_a_slow_one_splits_them() -> None:
    """Replicas all-reduce 4 MB of gradients and a pipeline sends 1 kB; what shards send is in their measured time."""
    few = advise_mixed(_profile(A=1), _devices("A", count=2, network=1e-3), 2)
    assert few.plans[0].plan.stages == (MixedStage(0, 4, (Replica("A", 2),)),)
    assert few.plans[0].step_us == pytest.approx(2 * 6_000)


def test_a_given_plan_is_predicted_and_compared() -> None:
    """Transfers of 1 kB at 10^6 bytes/s take 1 ms: on the link, and in the later stage."""
    plan = MixedPlan(1, (MixedStage(0, 2, (Replica("A", 1),)), MixedStage(2, 4, (Replica("B", 1),))))
    given = GivenPlan(name="x.json", plan=plan, measured_us=20_000.0)
    advice = advise_mixed(_profile(A=1, B=1), _devices("A", "B", network=1e-3), 1, [given], ["a warning"])
    (one,) = advice.given
    assert one.priced.step_us == pytest.approx(4 * 3_000 + 4 * 1_000)
    assert one.error_pct == pytest.approx(-20)
    assert (one.priced.stages[1].receive_us, one.priced.stages[1].work_us) == (1_000, 6_000)
    assert advice.warnings[0] == "a warning"


def test_the_all_reduce_of_replicas_passes_all_shards() -> None:
    plan = MixedPlan(1, (MixedStage(0, 4, (Replica("A", 2), Replica("B", 1))),))
    advice = advise_mixed(
        _profile(A=1, B=1), _devices("A", "B", count=2, network=1e-3), 2, [GivenPlan(name="x", plan=plan)]
    )
    stage = advice.given[0].priced.stages[0]
    assert stage.reduce_us == pytest.approx(4_000_000)
    assert stage.work_us == 12_000
    assert advice.given[0].priced.step_us == pytest.approx(12_000 + 4_000_000)


def test_memory_excludes_plans_but_not_given_ones() -> None:
    # A layer has 4 MB of weights, gradients and optimizer state.
    plan = MixedPlan(1, (MixedStage(0, 4, (Replica("A", 1),)),))
    advice = advise_mixed(_profile(A=1, B=1), _devices("A", "B", memory_gb=0.0085), 4, [GivenPlan(name="x", plan=plan)])
    assert not advice.given[0].priced.fits
    assert all(one.fits and len(one.stages) == 2 for one in advice.plans)
    with pytest.raises(EsprofError, match="does not fit into the memory"):
        advise_mixed(_profile(A=1), _devices("A", memory_gb=0.0085), 4)


def test_what_was_not_measured_is_named() -> None:
    with pytest.raises(UsageError, match="tiny was measured on A, but the inventory has C"):
        advise_mixed(_profile(A=1), _devices("C"), 4)
    unknown = GivenPlan(name="x.json", plan=MixedPlan(1, (MixedStage(0, 4, (Replica("C", 1),)),)))
    with pytest.raises(UsageError, match=r"x\.json uses C"):
        advise_mixed(_profile(A=1), _devices("A"), 4, [unknown])
    odd = GivenPlan(name="x.json", plan=MixedPlan(4, (MixedStage(0, 4, (Replica("A", 1),)),)))
    with pytest.raises(UsageError, match=r"x\.json: tiny was not measured on A with microbatch 4"):
        advise_mixed(_profile(A=1), _devices("A"), 4, [odd])
    with pytest.raises(UsageError, match=r"x\.json: a batch of 6 is not a multiple of 4 samples"):
        advise_mixed(_profile(A=1), _devices("A"), 6, [odd])


def test_advice_read_again_is_verified_and_a_changed_one_is_not() -> None:
    given = GivenPlan(name="x", plan=MixedPlan(1, (MixedStage(0, 4, (Replica("A", 1),)),)))
    written = msgspec.json.encode(advise_mixed(_profile(A=2, B=1), _devices("A", "B"), 4, [given]))
    advice = msgspec.json.decode(written, type=MixedAdvice)
    check_mixed(advice)
    with pytest.raises(MismatchError, match="plans differs"):
        check_mixed(msgspec.structs.replace(advice, plans=()))
