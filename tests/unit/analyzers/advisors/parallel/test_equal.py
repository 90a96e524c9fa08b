"""Plans of equal stages: equal to a plain sweep over all numbers and all divisions of the layers, and its closed forms."""

import random
from collections.abc import Iterator
from itertools import combinations

import msgspec
import pytest

from esprof.analyzers.advisors.job.growth import Model
from esprof.analyzers.advisors.parallel.equal import equal_plans, held_by_rank
from esprof.analyzers.advisors.parallel.pricing import Candidate
from esprof.analyzers.advisors.parallel.problem import Problem, Recompute
from esprof.analyzers.advisors.parallel.profile import Devices, Layer, LayerProfile, PassTimes
from esprof.replay.schedules.orders import held
from esprof.replay.schedules.pipeline import PipelineSchedule, PipelineShape
from tests.cases.layers import layer

_US_PER_BYTE = 1e-4


def _random_instance(seed: int) -> tuple[LayerProfile, Devices, int]:
    """Up to six layers on up to six devices of one type, most of them with too little memory for all layers."""
    draw = random.Random(seed)
    layers = tuple(
        Layer(
            name=str(number),
            times={"V100": PassTimes(forward_us=draw.uniform(1, 9), backward_us=draw.uniform(1, 20))},
            output_bytes=draw.randrange(20_000),
            kept_bytes=draw.randrange(50_000),
            parameter_bytes=draw.randrange(10_000),
        )
        for number in range(draw.randint(1, 6))
    )
    profile = LayerProfile(layers=layers, microbatch=draw.choice((1, 2)), state_factor=4.0, optimizer_factor=2.0)
    memory_gb = draw.choice((5e-5, 1e-4, 1.5e-4, 3e-4))
    devices = Devices(devices={"V100": Model(count=draw.randint(1, 6), memory_gb=memory_gb)}, network_gb_per_s=10.0)
    return profile, devices, draw.choice((2, 4, 12, 24))


def _plainly_priced(profile: LayerProfile, devices: Devices, batch: int) -> Iterator[tuple[float, Recompute]]:
    """The time of each plan that fits, with the numbers and formulas of the papers and nothing shared with esprof."""
    layers, (count, memory) = profile.layers, (devices.counts["V100"], devices.memory_bytes("V100"))
    for recompute in Recompute:
        for replicas in range(1, count + 1):
            if batch % (profile.microbatch * replicas):
                continue
            m = batch // profile.microbatch // replicas
            for p in range(1, min(count // replicas, len(layers)) + 1):
                for v in range(1, len(layers) // p + 1):
                    if v > 1 and (p == 1 or m % p):
                        continue
                    stages = _divided(layers, p * v, recompute)
                    needed = [
                        _memory(layers, stages[rank::p], recompute, replicas, _held(p, v, rank, m)) for rank in range(p)
                    ]
                    if max(needed) > memory:
                        continue
                    times = [_busy(layers, *stage, recompute) for stage in stages]
                    waits = [0.0]
                    for number, (first, end) in enumerate(stages):
                        reduced = 2 * (replicas - 1) / replicas * sum(one.parameter_bytes for one in layers[first:end])
                        before = sum(_backward(layers, *stage, recompute) for stage in stages[:number])
                        waits.append(reduced * _US_PER_BYTE - before)
                    yield (v * m - 1) * max(times) + sum(times) / v + max(waits), recompute


def _held(p: int, v: int, rank: int, m: int) -> float:
    return min(m, p - rank if v == 1 else p + (p - 1 - 2 * rank) / v)


def _divided(layers: tuple[Layer, ...], count: int, recompute: Recompute) -> list[tuple[int, int]]:
    """The division whose longest stage is shortest; of several, that with the largest last stages."""
    every = []
    for cuts in combinations(range(1, len(layers)), count - 1):
        ends = (*cuts, len(layers))
        stages = list(zip((0, *cuts), ends, strict=True))
        longest = round(max(_busy(layers, *stage, recompute) for stage in stages), 9)
        every.append((longest, [first - end for first, end in reversed(stages)], stages))
    return min(every)[2]


def _backward(layers: tuple[Layer, ...], first: int, end: int, recompute: Recompute) -> float:
    again = {Recompute.NONE: first, Recompute.LAYERS: min(end, len(layers) - 1), Recompute.STAGES: end}[recompute]
    backward = sum(one.times["V100"].backward_us for one in layers[first:end])
    return backward + sum(one.times["V100"].forward_us for one in layers[first:again])


def _busy(layers: tuple[Layer, ...], first: int, end: int, recompute: Recompute) -> float:
    received = layers[first - 1].output_bytes if first else 0
    forward = sum(one.times["V100"].forward_us for one in layers[first:end])
    return forward + _backward(layers, first, end, recompute) + 2 * received * _US_PER_BYTE


def _memory(
    layers: tuple[Layer, ...], stages: list[tuple[int, int]], recompute: Recompute, replicas: int, most: float
) -> float:
    state = kept = live = 0.0
    for first, end in stages:
        sizes = [(layers[at - 1].output_bytes if at else 0, layers[at].kept) for at in range(first, end)]
        state += sum(one.parameter_bytes for one in layers[first:end]) * (2 + 2 / replicas)
        if recompute is Recompute.STAGES:
            kept += sizes[0][0]
            live = max(live, sum(all_of_it for _, all_of_it in sizes))
            continue
        for at, (received, all_of_it) in enumerate(sizes, first):
            is_again = recompute is Recompute.LAYERS and at < len(layers) - 1
            mine = min(received, all_of_it) if is_again else all_of_it
            kept += mine
            live = max(live, all_of_it - mine)
    return state + live + most * kept


@pytest.mark.slow
def test_the_best_plan_is_that_of_a_plain_sweep() -> None:
    chosen = set()
    for seed in range(200):
        profile, devices, batch = _random_instance(seed)
        problems = [Problem.of(profile, devices, 1, recompute) for recompute in Recompute]
        found = equal_plans(problems, batch, most=1)
        best = min(_plainly_priced(profile, devices, batch), default=None)
        assert (best is None) == (not found), seed
        if best is not None:
            assert found[0].step_us == pytest.approx(best[0], rel=1e-9), seed
            chosen.add(found[0].problem.recompute)
    assert chosen == set(Recompute)


@pytest.mark.parametrize(("ranks", "chunks", "microbatches"), [(4, 1, 8), (4, 1, 2), (4, 2, 8), (4, 3, 4), (2, 5, 2)])
def test_the_closed_form_of_activations_held_is_that_of_the_schedules(
    ranks: int, chunks: int, microbatches: int
) -> None:
    schedule = PipelineSchedule.INTERLEAVED if chunks > 1 else PipelineSchedule.ONE_F_ONE_B
    exact = held(PipelineShape(schedule, ranks, microbatches, chunks))
    assert held_by_rank(ranks, chunks, microbatches).tolist() == exact


def test_of_equal_layers_time_and_memory_are_the_papers_closed_forms() -> None:
    """PTD-P §2.2: idle time (p − 1)/(vm) of the ideal; PipeDream-2BW §3.3 with one weight version."""
    alike = LayerProfile(
        layers=tuple(layer(str(n), parameter_bytes=1000, kept_bytes=70, output_bytes=0) for n in range(8))
    )
    eight = Devices(devices={"V100": 4}, network_gb_per_s=1.0)
    for recompute, ideal, activations in (
        # 8 microbatches of 2 layers of 30 µs each; 4 microbatches held of 2 layers.
        (Recompute.NONE, 8 * 2 * 30, 4 * 2 * 70),
        # The forward again, and one layer or one stage at a time: nothing else is kept, since the inputs have no size.
        (Recompute.STAGES, 8 * 2 * 40, 2 * 70),
    ):
        problem = Problem.of(alike, eight, 8, recompute)
        plans = {(one.ranks, one.chunks, one.replicas): one for one in equal_plans([problem], 8, most=99)}
        assert plans[4, 1, 1].step_us == pytest.approx(ideal * (1 + 3 / 8))
        assert plans[4, 2, 1].step_us == pytest.approx(ideal * (1 + 3 / (2 * 8)))
        plan = next(Candidate(0.0, problem, plans[4, 1, 1].split).plans(1.0))
        assert plan.step_us == pytest.approx(ideal * (1 + 3 / 8))
        assert plan.stages[0].memory_bytes == 2 * 4 * 1000 + activations


def test_the_state_of_the_optimizer_is_shared_only_if_it_does_not_fit() -> None:
    profile = LayerProfile(layers=(layer("a", parameter_bytes=1000),), optimizer_factor=2.0)
    for room, is_sharded, needed in ((4000, False, 4000), (3999, True, 3000)):
        two = Devices(devices={"V100": Model(count=2, memory_gb=room / 1e9)}, network_gb_per_s=1000.0)
        found = equal_plans([Problem.of(profile, two, 1)], 2, most=1)[0]
        plan = next(Candidate(0.0, found.problem, found.split).plans(1.0))
        assert (plan.is_sharded, plan.stages[0].replicas, plan.stages[0].memory_bytes) == (is_sharded, 2, needed)
        assert plan.torch is not None
        assert plan.torch.fully_shard == is_sharded


def test_interleaved_stages_are_named_with_their_ranks() -> None:
    four = LayerProfile(layers=tuple(layer(name) for name in "abcd"), tensor=2, column_wise=("up",), row_wise=("down",))
    found = equal_plans([Problem.of(four, Devices(devices={"V100": 2}, network_gb_per_s=1.0), 1)], 4, most=9)
    best = next(one for one in found if (one.ranks, one.chunks) == (2, 2))
    plan = next(Candidate(0.0, best.problem, best.split, 2).plans(1.0))
    assert msgspec.to_builtins(plan.torch) == {
        "mesh": {"pp": 2, "dp": 1, "tp": 2},
        "schedule": "ScheduleInterleaved1F1B",
        "microbatches": 4,
        "stages_of_rank": ((0, 2), (1, 3)),
        "parallelize": {"up": "ColwiseParallel", "down": "RowwiseParallel"},
        "fully_shard": False,
        "recompute": "none",
    }
