"""A described transformer: the published table of PTD-P (Narayanan et al., SC 2021), and its formulas layer by layer."""

from math import prod

import pytest

from esprof.analyzers.advisors.job.growth import Model
from esprof.analyzers.advisors.parallel.advise import advise_parallel
from esprof.analyzers.advisors.parallel.equal import held_by_rank
from esprof.analyzers.advisors.parallel.model import ParallelModel
from esprof.analyzers.advisors.parallel.problem import Problem, Recompute, Stage
from esprof.analyzers.advisors.parallel.profile import Devices, LayerProfile
from esprof.analyzers.advisors.parallel.transformer import Transformer
from esprof.core.errors import UsageError

_PUBLISHED = (
    # layers, hidden, heads, tensor, pipeline, devices, batch, 10⁹ parameters. Heads matter for one layer's activations only.
    (24, 2304, 24, 1, 1, 32, 512, 1.7),
    (30, 3072, 32, 2, 1, 64, 512, 3.6),
    (36, 4096, 32, 4, 1, 128, 512, 7.5),
    (40, 6144, 48, 8, 1, 256, 1024, 18.4),
    (48, 8192, 64, 8, 2, 512, 1536, 39.1),
    (128, 25600, 160, 8, 64, 3072, 3072, 1008.0),
)
_SERVERS = {"network_gb_per_s": 25.0, "server_gb_per_s": 250.0, "per_server": 8}


def _gpt(layers: int, hidden: int, heads: int, **others: object) -> Transformer:
    return Transformer(layers=layers, hidden=hidden, heads=heads, vocabulary=51_200, sequence=2048, **others)  # type: ignore[arg-type]


@pytest.mark.parametrize("row", _PUBLISHED, ids=lambda row: f"{row[-1]}B")
def test_parameters_are_the_published_ones(row: tuple[int, ...]) -> None:
    assert round(_gpt(*row[:3]).parameters / 1e9, 1) == pytest.approx(row[-1], abs=0.051)


def test_training_takes_the_published_days() -> None:
    largest = _gpt(*_PUBLISHED[-1][:3])
    assert round(largest.parameters / 1e9, 2) == 1008.04
    assert largest.training_days(450 * 10**9, devices=3072, tflops=163) == pytest.approx(83.9, abs=0.03)
    gpt3 = _gpt(96, 12_288, 96)
    assert gpt3.training_days(300 * 10**9, devices=1024, tflops=140) == pytest.approx(33.8, abs=0.05)


@pytest.mark.parametrize("row", _PUBLISHED, ids=lambda row: f"{row[-1]}B")
def test_the_published_plans_fit_into_their_gpus_with_recomputation(row: tuple[int, ...]) -> None:
    """On A100s of 80 GB, with a microbatch of 1, the optimizer state not shared, and equally many layers in each stage."""
    layers, hidden, heads, tensor, ranks, count, batch, _ = row
    profile = _profile(_gpt(layers, hidden, heads, fused_attention=False), tensor, is_split=ranks > 1)
    devices = Devices(devices={"A100": count}, **_SERVERS).grouped(tensor)
    assert devices is not None
    replicas, of_stage = count // tensor // ranks, -(-layers // ranks)
    problem = Problem.of(profile, devices, batch // replicas, Recompute.LAYERS)
    first = Stage(0, 1 + of_stage + (ranks == 1), 0, 1)
    held = held_by_rank(ranks, 1, batch // replicas)[0]
    assert problem.memory_bytes([first], held, is_sharded=False) < 80e9
    if ranks > 1:
        assert problem.memory_bytes([Stage(0, 1 + layers, 0, 1)], 1, is_sharded=False) > 80e9


@pytest.mark.parametrize("tensor", [1, 4])
def test_layers_add_up_to_the_whole_model(tensor: int) -> None:
    gpt, batch = _gpt(12, 1024, 16), 3
    whole = _profile(gpt, tensor, microbatch=batch)
    assert sum(one.parameter_bytes for one in whole.layers) == pytest.approx(2 * gpt.parameters / tensor, rel=1e-6)
    one = Devices(devices={"A100": 1}, network_gb_per_s=1.0)
    for recompute in Recompute:
        problem = Problem.of(whole, one, 1, recompute)
        # At 1 TFLOP/s, an operation takes a millionth of a microsecond.
        exchanges = 12 * gpt.tensor_bytes(batch, tensor) * 1e-3 * (1 if recompute is Recompute.NONE else 1.5)
        expected = gpt.flops(batch, recompute) / tensor * 1e-6 + exchanges
        assert problem.work_us[0, -1] == pytest.approx(expected, rel=1e-9)
        assert problem.exchanged_bytes(Stage(0, 14, 0, 1)) * 1e-3 == pytest.approx(exchanges)
    head = _profile(gpt, tensor, is_split=True).layers[-1]
    assert head.parameter_bytes == 2 * 51_200 * 1024 // tensor


def test_volumes_and_activations_are_the_published_formulas() -> None:
    gpt = _gpt(48, 8192, 64, fused_attention=False)
    numbers = 2 * 2048 * 8192
    assert gpt.tensor_bytes(2, 8) == 2 * 8 * numbers * 7 / 8
    assert gpt.tensor_bytes(2, 1) == 0
    scores = 5 * 64 * 2048 / 8192
    assert gpt.layer_kept_bytes(2, 1) == numbers * (34 + scores)
    assert gpt.layer_kept_bytes(2, 8) == numbers * (10 + (24 + scores) / 8)
    assert _gpt(48, 8192, 64, sequence_parallel=True).layer_kept_bytes(2, 8) == numbers * 34 / 8


@pytest.mark.parametrize(
    ("changed", "reason"),
    [
        ({"heads": 3}, "has 3 heads, which do not divide its hidden size of 64"),
        ({"layers": 0}, "needs sizes of at least 1"),
        ({"tflops": {"A100": 0.0}}, "needs tflops above 0"),
        ({"schema": "esprof.transformer/2"}, "has the schema esprof.transformer/2"),
    ],
)
def test_an_impossible_description_has_a_fault(changed: dict[str, object], reason: str) -> None:
    sizes = {"layers": 2, "hidden": 64, "heads": 4}
    assert reason in (_gpt(**sizes | changed).fault() or "")  # type: ignore[arg-type]


def test_tensor_parallelism_is_advised_where_the_model_does_not_fit_otherwise() -> None:
    """Two layers and much memory in a server of four, where one device has too little."""
    gpt = _gpt(2, 4096, 32, tflops={"A100": 100.0}, tokens=10**9, column_wise=("up",), row_wise=("down",))
    for memory_gb, degrees in ((80, {1}), (3.5, {4})):
        servers = Devices(devices={"A100": Model(count=4, memory_gb=memory_gb)}, **_SERVERS | {"per_server": 4})
        advice = advise_parallel(ParallelModel(transformer=gpt), servers, 256)
        best = advice.plans[0]
        assert {best.tensor} == degrees
        assert best.torch is not None
        assert prod(best.torch.mesh.values()) <= 4
        assert advice.lower_bound_us <= best.step_us
        assert advice.facts is not None
        assert advice.facts.flops == gpt.flops(256, best.recompute)
        assert advice.facts.training_days == pytest.approx(10**9 / 256 / 2048 * best.step_us / 86_400e6, abs=1e-3)
    assert best.torch.parallelize == {"up": "ColwiseParallel", "down": "RowwiseParallel"}
    assert advice.warnings[0] == "not measured, but computed: times of layers at 100 on A100 (TFLOP/s)"


def test_measured_layers_replace_computed_ones_and_set_the_speed_of_others() -> None:
    gpt = _gpt(2, 4096, 32, tflops={"A100": 1.0})
    servers = Devices(devices={"A100": 4}, **_SERVERS | {"per_server": 4})
    measured = gpt.profile(2, 2, {"A100": 50.0}, servers.us_per_byte_in_server(), is_split=True)
    advice = advise_parallel(ParallelModel(transformer=gpt, measured=(measured,)), servers, 16)
    assert advice.warnings[0] == "not measured, but computed: times of layers at 50 on A100 (TFLOP/s)"
    assert {plan.microbatch % 2 for plan in advice.plans} == {0}


def test_a_type_without_speed_is_refused() -> None:
    with pytest.raises(UsageError, match="the speed of A100 is unknown"):
        advise_parallel(
            ParallelModel(transformer=_gpt(2, 64, 4)), Devices(devices={"A100": 1}, network_gb_per_s=1.0), 1
        )


def _profile(gpt: Transformer, tensor: int, *, microbatch: int = 1, is_split: bool = False) -> LayerProfile:
    """At 1 TFLOP/s, with a link of 10⁹ bytes per second."""
    return gpt.profile(microbatch, tensor, {"A100": 1.0}, 1e-3, is_split=is_split)
