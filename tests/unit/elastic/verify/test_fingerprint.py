"""What is pinned, agreed on and written down before a job's first step."""

from collections import OrderedDict

import msgspec
import pytest
import torch
from torch import nn

from esprof.core.errors import MismatchError, UsageError
from esprof.elastic.data.threads import _loaded
from esprof.elastic.verify.diff import diff
from esprof.elastic.verify.fingerprint import machine_fields, model_fields, optimizer_fields, pin
from esprof.elastic.verify.steplog import StepLog
from tests.cases.elastic import on_threads
from tests.cases.elastic_job import bits, small_trainer

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def settings_only_here():
    matmul = torch.backends.mkldnn.matmul
    before = torch.are_deterministic_algorithms_enabled(), torch.get_num_threads(), matmul.fp32_precision
    yield
    torch.use_deterministic_algorithms(before[0])
    torch.set_num_threads(before[1])
    matmul.fp32_precision = before[2]


@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW])
def test_the_optimizer_s_implementation_is_pinned(kind):
    optimizer = kind([torch.nn.Parameter(torch.zeros(2))], lr=0.1)
    assert optimizer.param_groups[0]["foreach"] is None
    pin([optimizer], CPU)
    assert (optimizer.param_groups[0]["foreach"], optimizer.param_groups[0]["fused"]) == (False, False)


def test_what_the_user_chose_stays():
    optimizer = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], foreach=True)
    fused = torch.optim.Adam([torch.nn.Parameter(torch.zeros(2))], fused=True)
    pin([optimizer], CPU)
    pin([fused], CPU)
    assert optimizer_fields([optimizer])["optimizer.foreach"] is True
    assert optimizer_fields([fused])["optimizer.fused"] is True


def test_kernels_are_made_deterministic():
    torch.use_deterministic_algorithms(False)
    pin([torch.optim.SGD([torch.nn.Parameter(torch.zeros(2))])], CPU)
    found = machine_fields(CPU)
    assert found["deterministic"]
    assert not found["cudnn_benchmark"]


def test_what_chooses_kernels_is_written_down(monkeypatch):
    torch.set_num_threads(1)
    before = machine_fields(CPU)
    torch.set_num_threads(2)
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    monkeypatch.setenv("MKL_CBWR", "COMPATIBLE")
    after = machine_fields(CPU)
    changed = {name for name in before if before[name] != after[name]}
    assert {"threads", "mkldnn_matmul_precision", "MKL_CBWR"} <= changed


def test_an_unknown_level_is_refused():
    with pytest.raises(UsageError, match="determinism='D2' is invalid: expected 'D0' or 'D1' or 'hetero-relaxed'"):
        small_trainer(determinism="D2")


@pytest.mark.parametrize("level", ["D1", "hetero-relaxed"])
def test_a_plain_all_reduce_is_for_d0_alone(level):
    with pytest.raises(UsageError, match="adds in an order that depends on the assignment"):
        small_trainer(reduction="all-reduce", determinism=level)
    assert small_trainer(reduction="all-reduce", determinism="D0").step().step == 0


def test_at_d0_the_ests_stay_where_they_are():
    trainer = small_trainer(determinism="D0")
    with pytest.raises(UsageError, match="at determinism level D0 ESTs cannot move"):
        trainer.assign(trainer.assignment)


def test_logs_of_two_runs_are_equal_and_name_what_they_depend_on(tmp_path):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path in paths:
        bits(small_trainer(hash_log=path), 3)
    assert diff(*paths).outcome == "equal"
    fingerprint = StepLog.open(paths[0]).fingerprint
    assert fingerprint.job["n_est"] == 4
    assert fingerprint.job["model.conv.weight"] == "float32 [3, 1, 3, 3]"
    assert fingerprint.machine["threads"] == 1
    assert fingerprint.processes == {}
    lines = list(StepLog.open(paths[0]).steps())
    assert list(lines[0].tensors)[:2] == ["model/conv.weight", "model/conv.bias"]
    assert "optimizer/head.bias/exp_avg" in lines[0].tensors
    assert "model/norm.running_var" in lines[0].tensors


def test_a_run_of_which_one_bit_was_changed_parts_there(tmp_path):
    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    bits(small_trainer(hash_log=paths[0], hash_log_values=True), 4)
    other = small_trainer(hash_log=paths[1], hash_log_values=True)
    bits(other, 2)
    with torch.no_grad():
        other.state.model.head.bias.view(torch.int32)[0] ^= 1
    bits(other, 2)
    found = diff(*paths)
    assert (found.outcome, found.steps_equal, found.difference.step) == ("differ", 2, 2)
    assert found.difference.tensor.distance.differing > 0
    assert found.difference.tensor.distance.max_ulp > 0


def test_a_resumed_job_s_log_goes_on(tmp_path):
    static, resumed = tmp_path / "static.jsonl", tmp_path / "resumed.jsonl"
    bits(small_trainer(hash_log=static), 6)
    first = small_trainer(hash_log=resumed, folder=tmp_path / "c", every=3)
    bits(first, 5)  # Two steps more than the checkpoint holds.
    first.flush()
    bits(small_trainer(hash_log=resumed, folder=tmp_path / "c"), 3)
    found = diff(static, resumed)
    assert (found.outcome, found.steps_equal, found.only_a, found.only_b) == ("equal", 6, 0, 0)


def test_a_log_of_another_machine_is_not_continued(tmp_path):
    log = tmp_path / "log.jsonl"
    first = small_trainer(hash_log=log, folder=tmp_path / "c", determinism="hetero-relaxed")
    first.step()
    first.save()
    header, *lines = log.read_bytes().splitlines(keepends=True)
    there = msgspec.json.decode(header)
    there["fingerprint"]["machine"]["device_name"] = "another"
    log.write_bytes(msgspec.json.encode(there) + b"\n" + b"".join(lines))
    with pytest.raises(MismatchError, match=r"machine\.device_name is another there"):
        small_trainer(hash_log=log, folder=tmp_path / "c", determinism="hetero-relaxed")


SETTINGS = {
    "threads": lambda: torch.set_num_threads(2),
    "blas_threads": lambda: _loaded().lib_controllers[0].set_num_threads(2),
    "deterministic": lambda: torch.use_deterministic_algorithms(False),
    "sdp_math": lambda: torch.backends.cuda.enable_math_sdp(False),
    "cuda_matmul_bf16_reduction": lambda: setattr(
        torch.backends.cuda.matmul, "allow_bf16_reduced_precision_reduction", False
    ),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_what_is_changed_under_a_running_job_is_reported(name):
    promised, relaxed = small_trainer(), small_trainer(determinism="hetero-relaxed")
    SETTINGS[name]()
    try:
        with pytest.raises(UsageError, match=rf"machine\.{name} was .* when the trainer was made"):
            promised.step()
        assert relaxed.step().step == 0
    finally:
        torch.backends.cuda.enable_math_sdp(True)
        torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = True


def test_a_log_has_the_settings_of_optimizer_and_scheduler(tmp_path):
    def rates(optimizer):
        return torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)

    paths = [tmp_path / "a.jsonl", tmp_path / "b.jsonl"]
    for path, frozen in zip(paths, (False, True), strict=True):
        trainer = small_trainer(scheduler=rates, hash_log=path)
        if frozen:
            trainer.state.schedulers[0].gamma = 0.8  # Shows in the parameters from the second step on.
        trainer.step()
    found = diff(*paths)
    assert (found.outcome, found.difference.tensor.name) == ("differ", "state")


@pytest.mark.filterwarnings("ignore:Detected call of `lr_scheduler.step")  # The first fp16 steps are skipped.
def test_the_log_of_a_resumed_job_with_schedulers_goes_on(tmp_path):
    def sequence(optimizer):
        warm = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)
        cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
        return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])

    options = {"scheduler": sequence, "amp": "fp16"}
    static, resumed = tmp_path / "static.jsonl", tmp_path / "resumed.jsonl"
    bits(small_trainer(hash_log=static, **options), 6)
    first = small_trainer(hash_log=resumed, folder=tmp_path / "c", **options)
    bits(first, 3)
    first.save()
    bits(small_trainer(hash_log=resumed, folder=tmp_path / "c", **options), 3)
    assert (diff(static, resumed).outcome, diff(static, resumed).steps_equal) == ("equal", 6)


class Mapped(nn.Module):
    """Says of itself what is another address in each process."""

    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)

    def extra_repr(self):
        return f"function={self.function},\n    more={object()}"


def net(*, rate=0.3, activation=torch.relu, inner=nn.Identity):
    return lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 5), Mapped(activation), nn.Dropout(rate), inner())


OTHER_FORWARD = {
    "module.3 is Dropout(p=0.3, inplace=False) there and Dropout(p=0.5, inplace=False) here": net(rate=0.5),
    "module.4 is Identity() there and ReLU() here": net(inner=nn.ReLU),
    "module.2 is Mapped(function=<built-in method relu of type object>, more=<object object>) there and "
    "Mapped(function=<built-in method tanh of type object>, more=<object object>) here": net(activation=torch.tanh),
    "module.5 is absent there and Flatten(start_dim=1, end_dim=-1) here": lambda: net()().append(nn.Flatten()),
}


@pytest.mark.parametrize("reason", OTHER_FORWARD)
def test_a_job_does_not_go_on_with_another_forward_of_the_same_shapes(tmp_path, reason):
    first = small_trainer(model=net(), folder=tmp_path)
    first.step()
    first.save()
    assert small_trainer(model=net(), folder=tmp_path).next_step == 1
    with pytest.raises(MismatchError) as raised:
        small_trainer(model=OTHER_FORWARD[reason], folder=tmp_path)
    assert raised.value.reason == f"belongs to another job: job.{reason}"


def test_ranks_with_another_forward_are_refused():
    def body(transport):
        small_trainer(model=net(rate=0.1 * (1 + transport.rank)), transport=transport)

    with pytest.raises(MismatchError, match=r"job.module.3 is Dropout\(p=0.1, inplace=False\) on rank 0 and"):
        on_threads(2, body)


def test_a_model_s_fields_name_each_tensor_and_each_module():
    fields = model_fields(nn.Sequential(OrderedDict(a=nn.Linear(2, 3, bias=False), b=nn.GELU(approximate="tanh"))))
    assert fields == {
        "model.a.weight": "float32 [3, 2]",
        "module": "Sequential()",
        "module.a": "Linear(in_features=2, out_features=3, bias=False)",
        "module.b": "GELU(approximate='tanh')",
    }
