"""What ranks agree on before the first step; threads stand for ranks."""

import pytest
import torch

from esprof.core.errors import EsprofError, InputError, MismatchError
from esprof.elastic import Assignment
from esprof.elastic.runtime.agree import gather_values, reading_together, together, value_of
from esprof.elastic.verify.fingerprint import agree, machine_fields
from tests.cases.elastic import on_threads
from tests.cases.elastic_job import adamw, small_trainer

JOB = {"n_est": 2, "seed": 0}
MACHINE = {"device_name": "V100", "threads": 1}


def test_all_hear_what_each_says():
    said = ["", {"größe": [1, None]}, "long" * 100]
    assert on_threads(3, lambda transport: gather_values(transport, said[transport.rank])) == [said] * 3


def test_one_rank_decides_for_all():
    assert on_threads(3, lambda transport: value_of(transport, [transport.rank, "stop"], 2)) == [[2, "stop"]] * 3


@pytest.mark.parametrize(("value", "rank"), [({1, 2}, 0), (None, 2), (None, -1)])
def test_a_decision_that_cannot_be_sent_is_refused_on_all_ranks(value, rank):
    def body(transport):
        with pytest.raises(EsprofError, match=r"that JSON does not have|there is no rank"):
            value_of(transport, value if transport.rank == 0 else None, rank)
        return gather_values(transport, transport.rank)

    assert on_threads(2, body) == [[0, 1]] * 2


def test_all_fail_where_one_does():
    def body(transport):
        try:
            with together(transport):
                if transport.rank == 1:
                    raise InputError("is broken", path="file", remedy="Mend it.")
        except EsprofError as error:
            return str(error)

    assert on_threads(3, body) == [
        "file: is broken (rank 1)\n  Mend it.",
        "file: is broken\n  Mend it.",
        "file: is broken (rank 1)\n  Mend it.",
    ]


@pytest.mark.parametrize("error", [InputError, MismatchError])
def test_all_fail_alike_where_one_cannot_read(error):
    def body(transport):
        try:
            with reading_together(transport):
                if transport.rank > 0:
                    raise (error if transport.rank == 1 else InputError)("is broken", path="file", remedy="Mend it.")
        except EsprofError as raised:
            return type(raised), str(raised)

    results = on_threads(3, body)
    if error is InputError:
        assert results == [(InputError, "file: is broken (rank 1)\n  Mend it.")] * 3
    else:  # What is no damage goes first, so that nobody passes over it.
        assert [kind for kind, _ in results] == [EsprofError, MismatchError, EsprofError]


def test_none_fails_where_none_does():
    def body(transport):
        with together(transport):
            return "done"

    assert on_threads(2, body) == ["done"] * 2


def fingerprints(level, jobs, machines, terms=({}, {})):
    """Of each rank, or what it was told instead."""

    def body(transport):
        rank = transport.rank
        try:
            return agree(level, transport, jobs[rank], machines[rank], terms[rank], "[[0], [1]]")
        except MismatchError as error:
            return error.reason

    return on_threads(2, body)


def test_the_same_on_all_ranks_is_said_once():
    first, second = fingerprints("D1", [JOB] * 2, [MACHINE] * 2)
    assert first == second
    assert (first.job, first.machine, first.processes) == (JOB, MACHINE, {})


@pytest.mark.parametrize("level", ["D0", "D1", "hetero-relaxed"])
def test_ranks_of_different_jobs_are_refused(level):
    said = fingerprints(level, [JOB, JOB | {"seed": 1}], [MACHINE] * 2)
    assert said == ["job.seed is 0 on rank 0 and 1 on rank 1"] * 2


def test_d1_is_for_devices_of_one_type():
    machines = [MACHINE, MACHINE | {"device_name": "P100"}]
    said = fingerprints("D1", [JOB] * 2, machines)
    assert said == ["machine.device_name is V100 on rank 0 and P100 on rank 1"] * 2
    for level in ("D0", "hetero-relaxed"):
        first, second = fingerprints(level, [JOB] * 2, machines)
        assert first == second
        assert first.machine == {"device_name": ["V100", "P100"], "threads": 1}


def test_d0_is_for_one_assignment():
    first, _ = fingerprints("D0", [JOB] * 2, [MACHINE] * 2)
    assert first.processes == {"assignment": "[[0], [1]]"}


def test_a_machine_s_fields_can_be_told():
    machine = machine_fields(torch.device("cpu"))
    assert on_threads(1, lambda transport: gather_values(transport, machine)) == [[machine]]


def test_terms_must_be_alike_but_are_not_what_the_job_is():
    terms = [{"lr": 0.1}, {"lr": 0.2}]
    assert fingerprints("D1", [JOB] * 2, [MACHINE] * 2, terms) == ["terms.lr is 0.1 on rank 0 and 0.2 on rank 1"] * 2
    first, _ = fingerprints("D1", [JOB] * 2, [MACHINE] * 2, terms[:1] * 2)
    assert first.job == JOB


def results(steps, meddle=lambda trainer, rank, step: None, **unlike):
    """The result of each of two ranks after `steps` steps, with `meddle` before each; rank 1 has `unlike` options."""

    def body(transport):
        options = unlike if transport.rank else {}
        try:
            trainer = small_trainer(transport=transport, **options)
            for step in range(steps):
                meddle(trainer, transport.rank, step)
                trainer.step()
        except MismatchError as error:
            return error.reason

    return on_threads(2, body)


def frozen_bias(parameters):
    (*_, bias) = parameters = list(parameters)
    bias.requires_grad_(False)
    return adamw(parameters)


@pytest.mark.parametrize(
    ("unlike", "field"),
    [
        ({"optimizer": lambda parameters: torch.optim.AdamW(parameters, lr=0.2)}, "terms.optimizer.0.lr is 0.01"),
        ({"scheduler": lambda optimizer: torch.optim.lr_scheduler.StepLR(optimizer, 3)}, "job.scheduler is None"),
        ({"clip_norm": 0.5}, "job.clip_norm is 1.0"),
        ({"codec": "fp16"}, "job.codec is none"),
        ({"optimizer": frozen_bias}, "job.model.head.bias is float32 [5]"),
        ({"assignment": Assignment.of([[0], [1, 2, 3]])}, "terms.assignment is [[0, 1], [2, 3]]"),
        ({"bucket_mb": 1.0}, "terms.bucket_mb is 0.001"),
        ({"hash_log": "log.jsonl"}, "terms.hash_log is False"),
        ({"telemetry": "run"}, "terms.telemetry is False"),
        ({"folder": "folder"}, "terms.checkpoint is False"),
    ],
)
def test_ranks_that_are_told_unlike_things_are_refused(unlike, field, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first, second = results(1, **unlike)
    assert first == second
    assert first.startswith(field)
    assert first.endswith("on rank 1")
    assert list(tmp_path.iterdir()) == []


def rate(trainer, rank, step):
    if (rank, step) == (1, 1):
        trainer.state.optimizers[0].param_groups[0]["lr"] = 0.5


def later_codec(trainer, rank, step):
    if (rank, step) == (1, 1):
        trainer.set_codec("fp16", 3)


def codec_at_once(trainer, rank, step):
    if step == 1:
        trainer.set_codec("fp16" if rank else "bf16", 1)


def assignment(trainer, rank, step):
    if step == 1:
        trainer.assign(Assignment.of([[0], [1, 2, 3]] if rank else [[3], [0, 1, 2]]))


@pytest.mark.parametrize(
    ("meddle", "reason"),
    [
        (rate, "step 1.optimizer.0.lr is 0.01 on rank 0 and 0.5 on rank 1"),
        (later_codec, 'step 1.codecs is {"0": "none"} on rank 0 and {"0": "none", "3": "fp16"} on rank 1'),
        (codec_at_once, "step 1.codec is bf16 on rank 0 and fp16 on rank 1"),
        (assignment, "step 1.assignment is [[3], [0, 1, 2]] on rank 0 and [[0], [1, 2, 3]] on rank 1"),
    ],
)
def test_what_one_rank_alone_changes_between_two_steps_is_reported(meddle, reason):
    assert results(3, meddle) == [reason] * 2


def test_a_log_tells_which_rank_and_tensor_went_its_own_way(tmp_path):
    def body(transport):
        trainer = small_trainer(transport=transport, hash_log=tmp_path / "log.jsonl", prove_every=0)
        trainer.step()
        if transport.rank == 1:
            trainer.state.model.head.bias.data[0] += 1  # Of which torch notes no change.
        with pytest.raises(MismatchError) as raised:
            trainer.step()
        return raised.value.reason

    reasons = on_threads(2, body)
    assert reasons[0] == reasons[1]
    assert reasons[0].startswith("after step 1 rank 1 differs from rank 0, first in model/")
