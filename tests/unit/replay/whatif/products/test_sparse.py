"""`sparsity[REGEX]=2:4`: products with weights take the time of measured 2:4 ones, all else as long as before."""

import msgspec
import pytest

from esprof.core.errors import UsageError
from esprof.replay.building.build import build
from esprof.replay.whatif.grammar import parse
from esprof.replay.whatif.pricing import what_if
from esprof.run.probes import NotMeasured, Point, Probes, Sweep
from tests.cases.graph import BACKWARD, Args, Row, call, kernel, op, python, run_of, step
from tests.cases.probed import probes

TOKENS, OUT, IN = 512, 4096, 1024
FLOP = 2 * TOKENS * OUT * IN
GEMM, SGEMM = "ampere_bf16_s16816gemm_bf16_128x256_tn", "ampere_sgemm_128x64_tn"
SPARSIFY_US = 30


def product(name: str, at: float, *shapes: tuple[int, ...], tid: int = 1, sequence: int | None = None) -> Row:
    args = Args(dims=msgspec.Raw(msgspec.json.encode(shapes)), sequence=sequence)
    return msgspec.structs.replace(op(name, at, 20, tid), args=args)


def launch(at: float, starts: float, took: float, number: int, name: str = GEMM, tid: int = 1) -> list[Row]:
    return [call("cudaLaunchKernel", at, 5, number, tid), kernel(name, starts, took, number)]


def linear_step(out: int = OUT, *, module: str = "net.0.fc1", name: str = GEMM, shapes: bool = True) -> list[Row]:
    """A step of 10 ms that waits for the GPU: the forward pass of a linear layer in 1 ms, another kernel in 2 ms, and in the
    backward pass the gradient of the input in 1 ms and that of the weight in 3 ms."""
    of_weight = ((TOKENS, out), (out, IN))
    rows = [
        step(1, 0, 10_000),
        python(f"nn.Module: {module}", 10, 80),
        product("aten::addmm", 20, (out,), (TOKENS, IN), (IN, out), sequence=5),
        *launch(25, 100, 1_000, 1, name),
        op("aten::relu", 200, 20),
        *launch(205, 1_100, 2_000, 2, "relu_kernel"),
        msgspec.structs.replace(
            op("autograd::engine::evaluate_function: AddmmBackward0", 300, 100, BACKWARD),
            args=Args(sequence=5, forward_thread=1),
        ),
        product("aten::mm", 310, *of_weight, tid=BACKWARD),
        *launch(315, 3_100, 1_000, 3, name, BACKWARD),
        product("aten::mm", 340, (out, TOKENS), (TOKENS, IN), tid=BACKWARD),
        *launch(345, 4_100, 3_000, 4, name, BACKWARD),
        call("cudaDeviceSynchronize", 500, 6_600, 5),
        op("aten::copy_", 7_110, 2_880),
    ]
    if not shapes:
        rows = [row if row.args is None else msgspec.structs.replace(row, args=_without_dims(row.args)) for row in rows]
    return rows


def _without_dims(args: Args) -> Args:
    return msgspec.structs.replace(args, dims=None)


def curve(kind: str, weight: str, took_us: float, flop: int = FLOP) -> Sweep:
    unit = "bytes" if kind == "sparsify" else "flop"
    points = (Point(size=flop, samples_ns=(round(took_us * 1e3),) * 3),)
    return Sweep(kind=kind, name=weight, unit=unit, ranks=(0,), device="cuda", points=points)


def measured(dtype: str = "bfloat16", out: int = OUT) -> Probes:
    """Products forward are 2 times, and backward 1.25 times as fast with 2:4 weights."""
    weight, transposed = f"{dtype} {out}x{IN}", f"{dtype} {IN}x{out}"
    return probes(
        curve("dense", weight, 800),
        curve("sparse", weight, 400),
        curve("dense", transposed, 500),
        curve("sparse", transposed, 400),
        curve("sparsify", weight, SPARSIFY_US, 2 * OUT * IN),
    )


def answer(rows: list[Row], found: Probes | None, spec: str = "sparsity[fc1]=2:4"):
    run = run_of({0: rows})
    run.probes = found
    (one,) = what_if(run, build(run), [spec])
    return one


def test_products_with_the_weight_shrink_and_gradients_of_weights_do_not():
    one = answer(linear_step(), measured())
    # 1,000 / 2 + 30 forward, and 1,000 / 1.25 backward.
    assert one.saving_us == pytest.approx((1_000 - 500 - SPARSIFY_US) + (1_000 - 800), abs=2)
    assert "change the model" in one.note


def test_weights_of_other_modules_stay():
    assert "no call of a module of that name" in answer(linear_step(), measured(), "sparsity[fc2]=2:4").reason


def test_weights_that_were_not_measured_stay_dense_and_are_listed():
    both = [
        step(1, 0, 20_000),
        *linear_step()[1:],
        *(_later(row) for row in linear_step(out=10, module="net.1.fc1")[1:]),
    ]
    one = answer(both, measured())
    assert one.saving_us == pytest.approx(670, abs=2)
    assert "these weights stay dense: bfloat16 10x1024" in one.note


def _later(row: Row) -> Row:
    """The row 10 ms later, with launches of its own."""
    if row.args is not None and row.args.correlation is not None:
        row = msgspec.structs.replace(
            row, args=msgspec.structs.replace(row.args, correlation=row.args.correlation + 10)
        )
    return msgspec.structs.replace(row, ts=row.ts + 10_000)


@pytest.mark.parametrize(
    ("found", "reason"),
    [
        (None, "no product with 2:4 weights was measured (esprof probe)"),
        (probes(), "it takes a GPU of compute capability 8.0"),
        (measured("float16"), "no product of these modules was measured with 2:4 weights: bfloat16 4096x1024"),
        (measured(out=OUT + 16), "no product of these modules was measured with 2:4 weights: bfloat16 4096x1024"),
        (
            msgspec.structs.replace(probes(), left_out=(NotMeasured("2:4 bfloat16 10x10", "not a multiple of 16"),)),
            "2:4 bfloat16 10x10: not a multiple of 16",
        ),
    ],
)
def test_it_is_declined_without_measured_pairs(found, reason):
    assert reason in answer(linear_step(), found).reason


def test_sizes_far_from_the_measured_ones_are_declined():
    far = probes(curve("dense", "bfloat16 4096x1024", 9, 3 * FLOP), curve("sparse", "bfloat16 4096x1024", 8, 3 * FLOP))
    assert "no product of these modules" in answer(linear_step(), far).reason


@pytest.mark.parametrize("rows", [linear_step(name=SGEMM), linear_step(shapes=False)], ids=["32 bits", "no shapes"])
def test_products_of_32_bits_or_unknown_shapes_stay(rows):
    assert "no product of these modules" in answer(rows, measured()).reason


@pytest.mark.parametrize("spec", ["sparsity=2:4", "sparsity[fc1]=1:2", "sparsity[(]=2:4", "rank0.sparsity[fc1]=2:4"])
def test_what_is_no_such_term_is_refused(spec):
    with pytest.raises(UsageError):
        parse(spec)


def test_a_published_step_follows_from_the_published_pair():
    """ViT-L on an A100 (torchao's README on 2:4 training): forward and backward pass of the MLP of one of its 24 layers take
    11,534 µs with dense weights and 9,205 µs with sparse ones, a whole step 717.6 and 675.3 ms."""
    layers, dense, sparse, before, after = 24, 11_534.0, 9_205.0, 717_600.0, 675_300.0
    tokens = (44_160, 1_024)
    rows = [step(1, 0, before)]
    for layer in range(layers):
        at = 10 + 100 * layer
        rows += [
            python(f"nn.Module: layers.{layer}.mlp", at, 50),
            product("aten::addmm", at + 5, (4_096,), tokens, (1_024, 4_096)),
            *launch(at + 10, 3_000 + dense * layer, dense, layer + 1),
        ]
    rest = before - 3_000 - dense * layers - 100
    rows += [
        op("aten::relu", 2_500, 20),
        *launch(2_510, 3_000 + dense * layers, rest, layers + 1, "other_kernel"),
        call("cudaDeviceSynchronize", 2_600, before - 2_700, layers + 2),
    ]
    flop = 2 * 44_160 * 1_024 * 4_096
    pair = probes(
        curve("dense", "bfloat16 4096x1024", dense, flop), curve("sparse", "bfloat16 4096x1024", sparse, flop)
    )
    one = answer(rows, pair, "sparsity[mlp]=2:4")
    assert one.predicted_us == pytest.approx(before - layers * (dense - sparse), rel=1e-3)
    assert one.predicted_us == pytest.approx(after, rel=0.05)
