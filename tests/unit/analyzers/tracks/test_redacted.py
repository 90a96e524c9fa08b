"""Redacted exports."""

from dataclasses import replace

import pytest

from esprof.analyzers.sharing.redaction.hashed import hashed
from esprof.analyzers.tracks.redacted import redacted, redacted_title
from tests.cases.exported import cpu_run, exported


def test_a_name_has_the_same_hash_everywhere():
    assert hashed("op", "aten::mm") == hashed("op", "aten::mm")
    assert hashed("op", "aten::mm").removeprefix("op-") == hashed("node", "aten::mm").removeprefix("node-")
    assert hashed("op", "aten::mm") != hashed("op", "aten::mm_")


@pytest.mark.parametrize(
    "scenario", ["network=2x", "rank3.gpu=1.5x,data=0", "straggler=fix", "compress=powersgd:4,bucket_mb=50"]
)
def test_scenarios_without_names_stay(scenario):
    assert redacted_title(scenario) == scenario


@pytest.mark.parametrize("scenario", ["kernel[secret]=2x", "device[A]=2x", "assign=secret.json", "gpu=2x,assign=plan"])
def test_scenarios_with_names_are_hashed(scenario):
    assert redacted_title(scenario).startswith("what-if-")


def test_texts_without_a_rule_are_left_out():
    process = next(iter(exported(cpu_run()).processes()))
    track = next(track for track in process.tracks if len(track.slices.name))
    args = {"new column": ["secret"] * len(track.slices.name), "bytes": [4] * len(track.slices.name)}
    named = replace(process, tracks=[replace(track, slices=replace(track.slices, args=args))])
    (found,) = redacted(named).tracks
    assert found.slices.args == {"new column": [None] * len(args["bytes"]), "bytes": args["bytes"]}


def test_no_name_of_the_job_is_left_and_steps_stay():
    texts = []
    for process in exported(cpu_run(), "cpu=2x", redact=True).processes():
        texts += [process.name, process.about]
        for track in process.tracks:
            slices = track.slices
            texts += [track.name, *slices.names, *slices.categories]
            texts += [value for values in slices.args.values() for value in values if isinstance(value, str)]
    assert "ProfilerStep#3" in texts
    assert any(text.startswith("op-") for text in texts)
    for name in ("secret", "aten", "autograd", "Optimizer", "gloo:"):
        assert not [text for text in texts if name in text]
