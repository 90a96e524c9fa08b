"""PyTorch's own execution trace gives a Kineto trace the shapes that Kineto itself would have recorded."""

import json

import pytest

from esprof import load
from tests.cases.record import job, run

pytestmark = pytest.mark.integration


def test_shapes_are_those_of_kineto(tmp_path):
    kineto, execution = tmp_path / "kineto.json", tmp_path / "execution.json"
    done = run(job("execution_trace.py", str(kineto), str(execution)))
    assert done.code == 0, done.stderr
    document = json.loads(kineto.read_text())
    for row in document["traceEvents"]:
        for key in ("Input Dims", "Input type", "Input Strides", "Concrete Inputs"):
            row.get("args", {}).pop(key, None)
    bare = tmp_path / "bare.json"
    bare.write_text(json.dumps(document))
    recorded, completed = (load(files).events(0) for files in (kineto, [bare, execution]))
    assert not any(load(bare).events(0).texts("shapes"))
    own, from_twin = recorded.texts("shapes"), completed.texts("shapes")
    assert sum(any(map(str.isdigit, shapes or "")) for shapes in own) > 50
    unlike = [pair for pair in zip(own, from_twin, strict=True) if pair[0] and pair[0] != pair[1]]
    assert not unlike
    reduced = [row for row, name in enumerate(completed.texts("name")) if name == "gloo:all_reduce"]
    assert completed.ints("in_bytes")[reduced].tolist() == [4 * (3 * 4 * 3 + 4 + 24 * 2 + 2)] * 3
