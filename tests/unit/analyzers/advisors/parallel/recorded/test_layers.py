"""Layers of recorded jobs that are written by hand."""

import msgspec
import pytest

from esprof.analyzers.advisors.parallel.profile import Devices, PassTimes
from esprof.analyzers.advisors.parallel.recorded.layers import joined_layers, on_types, recorded_layers
from esprof.core.errors import InputError, UsageError
from esprof.run.run import Run
from esprof.run.schema import MODULES, STEPS, table
from tests.cases.graph import columns_of, op, python, run_of
from tests.cases.memory import MODEL, job, rows

SIZES = {
    "M": {"parameter_bytes": 400, "output_bytes": 4, "inputs": "", "outputs": "nn.Module: M.layers.1"},
    "M.layers.0": {"own_bytes": 100, "parameter_bytes": 100, "output_bytes": 500, "inputs": "", "outputs": ""},
    "M.layers.1": {"parameter_bytes": 300, "output_bytes": 50, "inputs": "nn.Module: M.layers.0", "outputs": ""},
}


def with_sizes(run, tables=None, **changes):
    """The run with sizes of its modules; `changes` to those of M."""
    sizes = SIZES | {"M": SIZES["M"] | changes}
    named = [{"name": f"nn.Module: {name}", "own_bytes": 0} | one for name, one in sizes.items()]
    given = {"modules": table(columns_of(named), MODULES)} | (tables or {})
    return Run(run.meta, lambda name, rank: given[name] if name in given else run.recorded(name, rank))


def beside(*more):
    """The job with more events in each step."""
    return run_of({0: [row for n in range(3) for row in [*rows(n), *(one(100 * n) for one in more)]]})


def device(run, *names):
    metas = (msgspec.structs.replace(meta, device=name) for meta, name in zip(run.meta.ranks, names, strict=True))
    return Run(msgspec.structs.replace(run.meta, ranks=tuple(metas)), run.recorded)


def test_times_and_sizes_of_layers():
    profile = recorded_layers(device(with_sizes(job()), "Big V100"))
    first, second = profile.layers
    # The second begins with the end of the first, and ends with the model's call.
    assert first.times == {"Big V100": PassTimes(forward_us=9.0, backward_us=9.0)}
    assert second.times == {"Big V100": PassTimes(forward_us=11.0, backward_us=9.0)}
    assert [(one.name, one.parameter_bytes, one.output_bytes) for one in profile.layers] == [
        ("M.layers.0", 100, 500),
        ("M.layers.1", 300, 50),
    ]
    assert [one.kept_bytes for one in profile.layers] == [1500, 1510]
    assert profile.state_factor == 2 + MODEL.optimizer / MODEL.parameters
    assert profile.microbatch == 1
    assert any("100 %" in note for note in profile.notes)
    assert any("number of samples is unknown" in note for note in profile.notes)


def test_samples_of_a_microbatch():
    steps = {"step": [0, 1, 2], "start_ns": [0] * 3, "dur_ns": [1] * 3, "phase": ["timed"] * 3, "samples": [6] * 3}
    made = job()
    for name in ("start_ns", "dur_ns"):
        steps[name] = made.steps(0).ints(name)
    assert recorded_layers(with_sizes(made, {"steps": table(steps, STEPS)})).microbatch == 6


def test_a_loss_behind_the_model_belongs_to_the_last_layer():
    _, last = recorded_layers(with_sizes(beside(lambda at: op("aten::nll_loss", at + 22, 5)))).layers
    assert [one.forward_us for one in last.times.values()] == [16.0]
    assert last.kept_bytes is None


def test_without_allocations_the_profile_says_so():
    profile = recorded_layers(with_sizes(beside()))
    assert profile.state_factor == 4.0
    assert any("record with --memory" in note for note in profile.notes)


def test_times_by_the_device_of_each_rank():
    run = device(with_sizes(job(ranks=2)), "A100", "T4")
    assert list(recorded_layers(run).layers[0].times) == ["A100", "T4"]


@pytest.mark.parametrize(
    ("run", "reason"),
    [
        (job(), "sizes of modules were not recorded"),
        (with_sizes(job(), outputs=None), "the inputs of its modules are unknown"),
        (with_sizes(beside(lambda at: op("c10d::allreduce_", at + 3, 1))), "each have a part of the model only"),
        (with_sizes(beside(lambda at: python("nn.Module: N", at + 60, 15))), "take 72 % of the time"),
    ],
)
def test_what_gives_no_layers(run, reason):
    with pytest.raises(InputError, match=reason):
        recorded_layers(run)


def test_runs_on_several_types_are_one_profile():
    of = [recorded_layers(device(with_sizes(job()), name)) for name in ("NVIDIA A100", "Tesla T4")]
    devices = Devices(devices={"A100": 1, "T4": 2}, network_gb_per_s=1)
    profile = on_types(joined_layers(of), devices)
    assert list(profile.layers[1].times) == ["A100", "T4"]
    assert len(profile.notes) == len(of[0].notes)


def test_runs_of_other_layers_are_refused():
    one = recorded_layers(with_sizes(job()))
    other = msgspec.structs.replace(one, layers=one.layers[:1])
    with pytest.raises(UsageError, match="different layers"):
        joined_layers([one, other])


@pytest.mark.parametrize(("kind", "reason"), [("V100", "of no recorded device"), ("A", "of several recorded devices")])
def test_types_that_were_not_recorded_are_refused(kind, reason):
    profile = recorded_layers(device(with_sizes(job(ranks=2)), "A100", "A40"))
    with pytest.raises(UsageError, match=reason):
        on_types(profile, Devices(devices={kind: 1}, network_gb_per_s=1))
