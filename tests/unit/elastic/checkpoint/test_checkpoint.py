"""Checkpoints of a job of one process: what comes back, what is refused, what a kill leaves."""

import errno
import fcntl
import hashlib
import json
import os
import pickle
import resource
import warnings

import pytest
import torch

from esprof.core.errors import EsprofError, InputError, MismatchError, OutputError, UsageError
from tests.cases import elastic_job
from tests.cases.elastic_job import bits, small_trainer


@pytest.fixture(autouse=True)
def deterministic_only_here():
    """A trainer makes the kernels of its process deterministic."""
    before = torch.are_deterministic_algorithms_enabled()
    yield
    torch.use_deterministic_algorithms(before)


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def frozen_head(parameters):
    (*_, bias) = parameters = list(parameters)
    bias.requires_grad_(False)
    return torch.optim.AdamW(parameters, lr=1e-2)


def milestones(optimizer):
    return torch.optim.lr_scheduler.MultiStepLR(optimizer, [2, 5])


def one_cycle(optimizer):
    warm = torch.optim.lr_scheduler.LinearLR(optimizer, total_iters=3)
    cosine = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 20)
    return torch.optim.lr_scheduler.SequentialLR(optimizer, [warm, cosine], [3])


JOBS = {
    "adamw": {},
    "momentum and milestones": {"optimizer": sgd, "scheduler": milestones},
    "a sequence of schedulers": {"scheduler": one_cycle},
    "several batches a step, a short last one": {"accumulate": 3, "drop_last": False},
    "fp16 with a scaler": {"amp": "fp16"},
    "top-k": {"codec": "topk:0.2"},
    "the ring of DDP, with its buckets": {"reduction": "ring"},
}


@pytest.mark.parametrize("options", JOBS.values(), ids=JOBS.keys())
def test_a_job_goes_on_as_if_it_had_not_stopped(tmp_path, options):
    expected = bits(small_trainer(**options), 9)
    first = small_trainer(folder=tmp_path, **options)
    seen = bits(first, 4)
    first.save()
    second = small_trainer(folder=tmp_path, **options)
    assert second.next_step == 4
    assert str(seen + bits(second, 5)) == str(expected)  # As text, in which NaN equals itself.


def without_the_convolution(parameters):
    """The convolution joins in a group of its own, by `thawed`."""
    return torch.optim.SGD(list(parameters)[2:], lr=0.1, momentum=0.9)


def thawed(steps, at=2, **options):
    """The bits of steps of a job that trains the convolution from step `at` on."""
    trainer, found = small_trainer(optimizer=without_the_convolution, **options), []
    for _ in range(steps):
        if trainer.next_step == at:
            trainer.state.optimizers[0].add_param_group(
                {"params": list(trainer.state.model.conv.parameters()), "lr": 0.01}
            )
        found += bits(trainer, 1)
    if trainer.checkpoints is not None:
        trainer.save()
    return found


def test_groups_that_the_script_has_added_are_kept(tmp_path):
    seen = thawed(4, folder=tmp_path)
    assert seen + thawed(3, folder=tmp_path) == thawed(7)


def test_other_groups_than_the_first_ones_of_the_checkpoint_are_refused(tmp_path):
    thawed(3, folder=tmp_path)
    with pytest.raises(MismatchError, match=r"group 0 of SGD is norm.weight, .* there and conv.weight, "):
        small_trainer(optimizer=sgd, folder=tmp_path)


def test_a_planned_change_of_codec_is_kept(tmp_path):
    def planned(**options):
        trainer = small_trainer(codec="fp16", **options)
        if trainer.next_step == 0:
            trainer.set_codec("topk:0.2", 2)
            trainer.set_codec("bf16", 5)
        return trainer

    expected = bits(planned(), 7)
    first = planned(folder=tmp_path)
    seen = bits(first, 3)
    first.save()
    assert seen + bits(planned(folder=tmp_path), 4) == expected


def test_saving_changes_nothing(tmp_path):
    assert bits(small_trainer(folder=tmp_path, every=1), 6) == bits(small_trainer(), 6)


def test_the_layout_is_that_of_torch_distributed_checkpoint(tmp_path):
    trainer = small_trainer(folder=tmp_path, codec="topk:0.2")
    trainer.step()
    trainer.save()
    reader = torch.distributed.checkpoint.FileSystemReader(tmp_path / "step-00000001")
    names = set(reader.read_metadata().state_dict_metadata)
    assert {"shared/model/conv.weight", "shared/model/norm.running_mean", "shared/state"} <= names
    assert "shared/optimizer/head.bias/exp_avg_sq" in names
    assert {f"est/{est}/rng/cpu" for est in range(4)} <= names
    assert "est/3/codec/conv.weight/residual" in names


def test_the_last_ones_are_kept(tmp_path):
    trainer = small_trainer(folder=tmp_path, every=2, keep=2, prove_every=0)
    bits(trainer, 7)
    trainer.save()
    trainer.save()
    assert sorted(path.name for path in tmp_path.glob("step-*")) == ["step-00000006", "step-00000007"]
    assert trainer.checkpoints.whole_step == 7


def test_half_written_ones_are_not_seen_and_go_away(tmp_path):
    bits(small_trainer(), 1)
    leftover = tmp_path / ".step-00000009.tmp"
    leftover.mkdir()
    (leftover / "__0_0.distcp").write_bytes(b"half")
    trainer = small_trainer(folder=tmp_path)
    assert trainer.next_step == 0
    trainer.step()
    trainer.save()
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000001"]


@pytest.fixture
def saved(tmp_path):
    """A folder with the checkpoints of steps 1 and 2."""
    trainer = small_trainer(folder=tmp_path)
    for _ in range(2):
        trainer.step()
        trainer.save()
    return tmp_path


def refusal(folder, **options):
    with pytest.raises(EsprofError) as raised:
        small_trainer(folder=folder, **options)
    return raised.value


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata", "manifest.json"])
@pytest.mark.parametrize("spoil", ["flip", "cut", "remove"])
def test_in_place_of_a_spoiled_one_the_one_before_is_taken(saved, name, spoil):
    spoiled = spoil_file(saved / "step-00000002" / name, spoil)
    with pytest.warns(UserWarning, match="resumes from step-00000001") as warned:
        assert small_trainer(folder=saved).next_step == 1
    (warning,) = warned
    assert str(warning.message).startswith(f"{spoiled}: ")
    assert warning.filename == elastic_job.__file__, "where the trainer was made"


def spoil_file(file, spoil):
    whole = file.read_bytes()
    match spoil:
        case "flip":
            file.write_bytes(whole[:40] + bytes([whole[40] ^ 0x80]) + whole[41:])
        case "cut":
            file.write_bytes(whole[:-9])
        case "remove":
            file.unlink()
    return file


def test_where_none_is_whole_the_newest_is_reported_and_the_way_out(saved):
    spoil_file(saved / "step-00000001" / ".metadata", "cut")
    newest = spoil_file(saved / "step-00000002" / "__0_0.distcp", "flip")
    error = refusal(saved)
    assert isinstance(error, InputError)
    assert (error.path, error.reason) == (str(newest), "has changed since it was written")
    assert error.remedy == f"Restore it, or remove the checkpoints in {saved} to start from step 0."


def test_the_job_is_the_one_that_the_older_checkpoint_has(saved):
    spoil_file(saved / "step-00000002" / "manifest.json", "remove")
    with pytest.warns(UserWarning, match="cannot be read"):
        found = bits(small_trainer(folder=saved), 3)
    assert found == bits(small_trainer(), 4)[1:]


@pytest.mark.parametrize("keep", [1, 2])
def test_a_damaged_one_takes_no_whole_one_s_place(saved, keep):
    spoil_file(saved / "step-00000002" / "__0_0.distcp", "cut")
    (saved / "step-00000002").rename(saved / "step-00000009")
    with pytest.warns(UserWarning, match="resumes from step-00000001"):
        trainer = small_trainer(folder=saved, keep=keep, every=1, prove_every=1)
    bits(trainer, 3)
    trainer.flush()
    kept = [f"step-{step:08}" for step in (2, 3, 4)[-keep:]]
    assert sorted(path.name for path in saved.glob("step-*")) == [*kept, "step-00000009"]
    with pytest.warns(UserWarning, match="resumes from step-00000004"):
        small_trainer(folder=saved)
    bits(trainer, 5)
    trainer.flush()
    assert [path.name for path in saved.glob("step-*") if path.name > "step-00000008"] == ["step-00000009"]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert small_trainer(folder=saved).next_step == 9


def test_a_damaged_one_of_another_job_is_not_passed_over(saved):
    spoil_file(saved / "step-00000002" / "__0_0.distcp", "cut")
    assert isinstance(refusal(saved, seed=7), MismatchError)
    spoil_file(saved / "step-00000002" / "manifest.json", "cut")
    error = refusal(saved, seed=7)
    assert isinstance(error, MismatchError)
    assert error.path == saved / "step-00000001"


def test_one_of_another_esprof_is_not_passed_over(saved):
    manifest = saved / "step-00000002" / "manifest.json"
    manifest.write_text(manifest.read_text().replace("esprof.checkpoint/2", "esprof.checkpoint/3"))
    error = refusal(saved)
    assert isinstance(error, MismatchError)
    assert error.remedy == "Use the esprof version that wrote it."


class _Evil:
    def __reduce__(self):
        return exec, ("raise SystemExit('code ran')",)


@pytest.mark.parametrize("metadata", [_Evil(), {"a": 1}, torch.float32, torch.nn.Linear(1, 1)])
def test_nothing_in_a_checkpoint_can_run_code(saved, metadata):
    folder = saved / "step-00000002"
    (folder / ".metadata").write_bytes(pickle.dumps(metadata))
    forged = (folder / ".metadata").read_bytes()
    manifest = json.loads((folder / "manifest.json").read_bytes())
    manifest["files"][".metadata"] = {"bytes": len(forged), "sha256": hashlib.sha256(forged).hexdigest()}
    (folder / "manifest.json").write_text(json.dumps(manifest), encoding="utf-8")
    with pytest.warns(UserWarning, match="not a checkpoint of tensors"):
        assert small_trainer(folder=saved).next_step == 1


@pytest.mark.parametrize(
    ("other", "field"),
    [
        ({"n_est": 2}, "n_est is 4 there and 2 here"),
        ({"seed": 7}, "seed is 0 there and 7 here"),
        ({"batch_size": 3}, "batch_size is 2 there and 3 here"),
        ({"accumulate": 2}, "accumulate is 1 there and 2 here"),
        ({"amp": "bf16"}, "amp is None there and bf16 here"),
        ({"optimizer": sgd}, "optimizer is torch.optim.adamw.AdamW there"),
        ({"scheduler": milestones}, "scheduler is None there and MultiStepLR here"),
        ({"codec": "fp16"}, "codec is none there and fp16 here"),
        ({"clip_norm": None}, "clip_norm is 1.0 there and None here"),
        ({"optimizer": frozen_head}, r"model.head.bias is float32 [5] there and float32 [5] frozen here"),
        ({"classes": 6}, r"model.head.weight is float32 [5, 108] there and float32 [6, 108] here"),
    ],
)
def test_a_checkpoint_of_another_job_is_refused(saved, other, field):
    error = refusal(saved, **other)
    assert isinstance(error, MismatchError)
    assert field in error.reason
    assert error.path == saved / "step-00000002"
    assert error.remedy


def test_another_machine_is_refused_unless_the_promise_is_relaxed(saved):
    manifest = saved / "step-00000002" / "manifest.json"
    there = json.loads(manifest.read_bytes())
    there["fingerprint"]["machine"]["cpu_capability"] = "VSX"
    manifest.write_text(json.dumps(there), encoding="utf-8")
    assert "machine.cpu_capability is VSX there" in refusal(saved).reason
    assert small_trainer(folder=saved, determinism="hetero-relaxed").next_step == 2


def test_a_folder_that_is_none_is_reported(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    trainer = small_trainer(folder=tmp_path / "file")
    with pytest.raises(OutputError) as raised:
        trainer.save()
    assert "cannot be written" in raised.value.reason


def test_without_room_the_last_whole_one_stays(saved):
    trainer = small_trainer(folder=saved)
    trainer.step()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
    try:
        with pytest.raises(OutputError, match="cannot be written"):
            trainer.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert small_trainer(folder=saved).next_step == 2
    trainer.save()
    assert small_trainer(folder=saved).next_step == 3
    assert not list(saved.glob(".step-*"))


def test_training_goes_on_without_a_checkpoint_that_nobody_asked_for(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    trainer = small_trainer(folder=tmp_path / "file", every=1)
    bits(trainer, 2)
    with pytest.warns(UserWarning, match="no checkpoint was written"):
        trainer.step()
    with pytest.warns(UserWarning, match="no checkpoint was written"):
        trainer.flush()


def test_a_job_without_a_folder_cannot_save():
    with pytest.raises(UsageError, match="no checkpoint folder"):
        small_trainer().save()


@pytest.mark.parametrize("options", [{"every": -1}, {"keep": 0}])
def test_senseless_numbers_are_refused(tmp_path, options):
    with pytest.raises(UsageError, match="is invalid"):
        small_trainer(folder=tmp_path, **options)


def test_a_state_that_cannot_be_held_is_reported_before_anything_is_written(tmp_path):
    def by_object(optimizer):
        class Halving:
            def __init__(self):
                self.seen = {1, 2}

            def __call__(self, step):
                return 0.5**step

        return torch.optim.lr_scheduler.LambdaLR(optimizer, Halving())

    trainer = small_trainer(scheduler=by_object, folder=tmp_path)
    with pytest.raises(UsageError, match=r"lr_lambdas/0/seen is a set"):
        trainer.save()
    assert list(tmp_path.iterdir()) == []


def test_no_warning_of_torch_reaches_the_user(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        trainer = small_trainer(folder=tmp_path)
        trainer.step()
        trainer.save()
        small_trainer(folder=tmp_path)


def test_a_change_of_codec_that_the_script_repeats_is_no_news(tmp_path):
    def planned(**options):
        trainer = small_trainer(codec="fp16", **options)
        trainer.set_codec("bf16", 1)
        return trainer

    first = planned(folder=tmp_path)
    bits(first, 3)
    first.save()
    second = planned(folder=tmp_path)
    assert second.next_step == 3
    with pytest.raises(UsageError, match="step 1 is over"):
        second.set_codec("topk:0.1", 1)


def test_what_was_changed_since_is_saved_in_place_of_the_same_step(tmp_path):
    trainer = small_trainer(folder=tmp_path, every=1)
    trainer.step()
    trainer.flush()
    trainer.state.optimizers[0].param_groups[0]["lr"] = 0.125
    trainer.save()
    assert [path.name for path in tmp_path.glob("step-*")] == ["step-00000001"]
    assert small_trainer(folder=tmp_path).state.optimizers[0].param_groups[0]["lr"] == 0.125


def test_what_another_job_is_writing_is_left_alone(saved):
    half = saved / ".step-00000003.tmp"
    half.mkdir()
    trainer = small_trainer(folder=saved)
    trainer.step()
    with (saved / ".lock").open("r+b") as other:
        fcntl.flock(other, fcntl.LOCK_EX)
        with pytest.raises(OutputError, match="another job is writing a checkpoint there"):
            trainer.save()
        assert half.exists()
    trainer.save()
    assert not half.exists()


def test_a_folder_on_nfs_is_locked_too(saved, monkeypatch):
    """It refuses to lock what was opened to read only (`flock(2)`, "NFS details")."""
    locked = []

    def as_nfs(file, _):
        if fcntl.fcntl(file, fcntl.F_GETFL) & os.O_ACCMODE == os.O_RDONLY:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF))
        locked.append(file)

    monkeypatch.setattr(fcntl, "flock", as_nfs)
    trainer = small_trainer(folder=saved)
    trainer.step()
    trainer.save()
    assert locked


@pytest.mark.parametrize("number", [errno.EACCES, errno.ENOLCK])
def test_without_a_lock_a_checkpoint_is_written_all_the_same(saved, monkeypatch, number):
    def refuse(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", refuse)
    trainer = small_trainer(folder=saved)
    trainer.step()
    trainer.save()
    assert (saved / "step-00000003").exists()


@pytest.mark.parametrize("name", ["../../../dev/zero", "/dev/zero", "a\\b", "a\0b"])
def test_a_manifest_that_names_files_elsewhere_is_refused(saved, name):
    manifest = saved / "step-00000002" / "manifest.json"
    there = json.loads(manifest.read_bytes())
    there["files"][name] = there["files"][".metadata"]
    manifest.write_text(json.dumps(there), encoding="utf-8")
    with pytest.warns(UserWarning, match="which is not in its folder: the job skips this checkpoint"):
        assert small_trainer(folder=saved).next_step == 1


@pytest.mark.parametrize("name", ["__0_0.distcp", ".metadata"])
def test_a_file_that_the_manifest_leaves_out_is_not_read(saved, name):
    manifest = saved / "step-00000002" / "manifest.json"
    there = json.loads(manifest.read_bytes())
    del there["files"][name]
    manifest.write_text(json.dumps(there), encoding="utf-8")
    with pytest.warns(UserWarning, match=f"{name}: is not in the manifest: the job skips this checkpoint"):
        assert small_trainer(folder=saved).next_step == 1
