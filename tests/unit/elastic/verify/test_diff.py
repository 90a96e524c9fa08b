"""Step-hash logs and their comparison."""

import json
import math
import subprocess
import sys

import msgspec
import numpy as np
import pytest
import torch

from esprof.core.errors import InputError, MismatchError
from esprof.elastic.proof.record import ProofRecord
from esprof.elastic.runtime.transport import Alone
from esprof.elastic.verify.content import as_numpy
from esprof.elastic.verify.diff import Distance, diff, distance
from esprof.elastic.verify.hashlog import HashLog
from esprof.elastic.verify.steplog import Fingerprint, StepLog
from esprof.reports.terminal.elastic import render_diff
from tests.unit.test_cli import run_main

HERE = Fingerprint("D1", {"n_est": 2, "seed": 0}, {"device": "cpu", "threads": 1}, {})


def changed(**machine):
    return msgspec.structs.replace(HERE, machine=HERE.machine | machine)


def write_log(path, steps, *, fingerprint=HERE, first=0, values=False, codec="none", assignment=((0, 1),), proof=None):
    """A log whose steps hold `(losses, weight)`."""
    log = HashLog(path, fingerprint, first, Alone(), values=values)
    for step, (losses, weight) in enumerate(steps, first):
        tensors = {"model/weight": weight, "model/count": torch.tensor(step)}
        proven = proof or ProofRecord()
        log.write(step, 0, losses, tensors, skipped=False, assignment=assignment, codec=codec, proof=proven)
    log.close()
    return path


def weights(*values):
    return [((0.5, 0.25), torch.tensor(value)) for value in values]


def compared(tmp_path, a, b, options_a=None, options_b=None):
    paths = write_log(tmp_path / "a", a, **(options_a or {})), write_log(tmp_path / "b", b, **(options_b or {}))
    return diff(*paths)


def test_equal_runs_are_equal_whatever_their_assignments(tmp_path):
    found = compared(tmp_path, weights([1.0], [2.0]), weights([1.0], [2.0]), {}, {"assignment": ((0,), (1,))})
    assert (found.outcome, found.steps_equal, found.last_equal, found.difference) == ("equal", 2, 1, None)


def test_a_longer_log_is_equal_as_far_as_both_go(tmp_path):
    found = compared(tmp_path, weights([1.0], [2.0], [3.0]), weights([2.0]), {}, {"first": 1})
    assert (found.outcome, found.steps_equal, found.only_a, found.only_b) == ("equal", 1, 2, 0)


def test_the_first_differing_step_and_tensor_are_named_with_their_distance(tmp_path):
    nearly = [1.0, math.nextafter(2.0, 3.0)]
    a = [((0.5, 0.25), torch.tensor(row, dtype=torch.float64)) for row in ([1.0, 2.0], [1.0, 2.0], [0.0, 0.0])]
    b = [((0.5, 0.25), torch.tensor(row, dtype=torch.float64)) for row in ([1.0, 2.0], nearly, [9.0, 9.0])]
    found = compared(tmp_path, a, b, {"values": True}, {"values": True})
    assert (found.outcome, found.steps_equal) == ("differ", 1)
    step = found.difference
    assert (step.step, step.losses, step.tensors, step.tensors_differing) == (1, (), 2, 1)
    assert (step.tensor.name, step.tensor.elements, step.tensor.reason) == ("model/weight", 2, None)
    assert step.tensor.distance == Distance(1, 1, 0)


def test_what_is_proven_of_each_is_said(tmp_path):
    proofs = {"proof": ProofRecord(0)}, {"proof": ProofRecord(0, 1)}
    found = compared(tmp_path, weights([1.0], [2.0]), weights([1.0], [2.0]), *proofs)
    assert (found.proven_a, found.diverged_a, found.proven_b, found.diverged_b) == (0, None, 0, 1)
    text = render_diff(found)
    assert f"A: {tmp_path / 'a'}: bits proven up to step 0\n" in text
    assert text.endswith(f"B: {tmp_path / 'b'}: bits proven up to step 0, diverged at step 1")


def test_without_values_the_distance_is_unknown(tmp_path):
    found = compared(tmp_path, weights([1.0]), weights([2.0]), {"values": True})
    assert found.difference.tensor.distance is None
    assert found.difference.tensor.reason == "values were not stored"


def test_the_losses_that_differ_are_named(tmp_path):
    same = torch.ones(1)
    found = compared(tmp_path, [((0.5, math.nan), same)], [((0.75, math.nan), same)])
    assert found.outcome == "differ"
    assert [(loss.est, loss.a, loss.b) for loss in found.difference.losses] == [(0, 0.5, 0.75)]
    assert found.difference.tensor is None


@pytest.mark.parametrize(
    ("other", "field"),
    [
        (changed(threads=2), "machine.threads"),
        (msgspec.structs.replace(HERE, job={"n_est": 2, "seed": 1}), "job.seed"),
        (msgspec.structs.replace(HERE, job={"n_est": 2}), "job.seed"),
        (msgspec.structs.replace(HERE, determinism="D0"), "determinism"),
        (msgspec.structs.replace(HERE, processes={"assignment": "[[0, 1]]"}), "processes.assignment"),
    ],
)
def test_other_fingerprints_are_not_comparable(tmp_path, other, field):
    found = compared(tmp_path, weights([1.0]), weights([1.0]), {}, {"fingerprint": other})
    assert (found.outcome, found.mismatch.field) == ("not-comparable", field)


def test_another_codec_is_not_comparable(tmp_path):
    found = compared(tmp_path, weights([1.0]), weights([1.0]), {}, {"codec": "fp16"})
    assert (found.outcome, found.mismatch.a, found.mismatch.b) == ("not-comparable", "none", "fp16")


def test_logs_without_a_common_step_are_not_comparable(tmp_path):
    assert compared(tmp_path, weights([1.0]), weights([1.0]), {}, {"first": 1}).outcome == "not-comparable"


@pytest.mark.parametrize(
    ("a", "b", "ulp"),
    [
        (1.0, 1.0 + 2**-23, 1),
        (0.0, -0.0, 1),
        (2.0**-149, -(2.0**-149), 3),
        (1.0, 2.0, 2**23),
        (math.inf, 3.4028234663852886e38, 1),
        (-math.inf, math.inf, 2 * 0x7F800000 + 1),
    ],
)
def test_ulps_count_the_numbers_in_between(a, b, ulp):
    arrays = np.array([a, 5.0], dtype=np.float32), np.array([b, 5.0], dtype=np.float32)
    assert distance(*arrays, is_float=True) == Distance(1, ulp, 0)


def test_nan_has_no_distance():
    a, b = np.array([math.nan, 1.0, math.nan]), np.array([1.0, 2.0, math.nan])
    assert distance(a, b, is_float=True) == Distance(2, 2**52, 1)


def test_bfloat16_is_counted_in_its_own_ulps():
    a, b = torch.tensor([1.0, math.nan]).bfloat16(), torch.tensor([1.0 + 2**-7, 1.0]).bfloat16()
    assert distance(as_numpy(a), as_numpy(b), is_float=True) == Distance(2, 1, 1)


def test_integers_have_no_ulps():
    assert distance(np.array([1, 2]), np.array([1, 3]), is_float=False) == Distance(1, None)


def test_a_resumed_log_is_written_anew_from_its_step_on(tmp_path):
    path = write_log(tmp_path / "a", weights([1.0], [2.0], [3.0]))
    with path.open("ab") as file:
        file.write(b'{"step":3,"ep')  # The process was killed here.
    write_log(path, weights([4.0]), first=1)
    lines = list(StepLog.open(path).steps())
    assert [line.step for line in lines] == [0, 1]
    assert diff(path, write_log(tmp_path / "b", weights([1.0], [4.0]))).outcome == "equal"


def test_a_log_of_another_job_is_not_continued(tmp_path):
    path = write_log(tmp_path / "a", weights([1.0]))
    before = path.read_bytes()
    with pytest.raises(MismatchError, match=r"machine\.threads is 1 there and 2 here"):
        HashLog(path, changed(threads=2), 1, Alone())
    assert path.read_bytes() == before


def test_an_unfinished_last_line_is_passed_over(tmp_path):
    path = write_log(tmp_path / "a", weights([1.0], [2.0]))
    path.write_bytes(path.read_bytes()[:-5])
    assert [line.step for line in StepLog.open(path).steps()] == [0]


def _edited(line, **changes):
    return json.dumps(json.loads(line) | changes).encode()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda lines: [],
        lambda lines: [b"{}", *lines[1:]],
        lambda lines: [_edited(lines[0], schema="esprof.step-log/9"), *lines[1:]],
        lambda lines: [lines[0], b"\xff\xfe", *lines[2:]],
        lambda lines: [lines[0], lines[2], lines[1]],
        lambda lines: [lines[0], _edited(lines[1], losses=["0x1p+0", "none"]), *lines[2:]],
        lambda lines: [lines[0], _edited(lines[1], losses=["0x1p+0", "0x1p99999"]), *lines[2:]],
        lambda lines: [lines[0], _edited(lines[1], tensors={"w": ["float32", [1], "../../../etc/passwd"]})],
        lambda lines: [b"[" * 100_000, *lines[1:]],
    ],
)
def test_a_broken_log_is_named(tmp_path, spoil):
    whole = write_log(tmp_path / "whole", weights([1.0], [2.0]))
    broken = tmp_path / "broken"
    broken.write_bytes(b"".join(line + b"\n" for line in spoil(whole.read_bytes().splitlines())))
    with pytest.raises(InputError) as raised:
        diff(whole, broken)
    assert raised.value.path == broken
    assert raised.value.remedy


def test_values_that_are_no_array_are_named_and_not_unpickled(tmp_path):
    paths = [write_log(tmp_path / name, weights([value]), values=True) for name, value in (("a", 1.0), ("b", 2.0))]
    for path in (tmp_path / "a.values").iterdir():
        np.save(path, np.array([print]), allow_pickle=True)
    with pytest.raises(InputError, match="is not an array"):
        diff(*paths)


@pytest.mark.parametrize(
    ("a", "b", "code", "said"),
    [
        ([1.0], [1.0], 0, "equal: bit for bit"),
        ([1.0], [2.0], 3, "differ: first at step 0"),
    ],
)
def test_the_verb_says_so_and_exits_so(tmp_path, monkeypatch, capsys, a, b, code, said):
    paths = [str(write_log(tmp_path / name, weights(value))) for name, value in (("a", a), ("b", b))]
    assert run_main(monkeypatch, "elastic", "diff", *paths) == code
    assert capsys.readouterr().out.startswith(said)


def test_the_verb_refuses_what_is_not_comparable(tmp_path, monkeypatch, capsys):
    paths = [str(write_log(tmp_path / str(n), weights([1.0]), fingerprint=changed(threads=n))) for n in (1, 2)]
    assert run_main(monkeypatch, "elastic", "diff", "--json", *paths) == 1
    said = json.loads(capsys.readouterr().out)
    assert (said["schema"], said["outcome"]) == ("esprof.elastic-diff/1", "not-comparable")
    assert said["mismatch"] == {"field": "machine.threads", "a": "1", "b": "2"}


def test_comparing_needs_no_torch():
    code = "import sys, esprof.elastic.verify.diff, esprof.reports.commands.elastic; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60).returncode == 0
