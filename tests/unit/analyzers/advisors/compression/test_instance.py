"""Published instances, their optima, and invalid files."""

import json
from pathlib import Path

import numpy as np
import pytest

from esprof.analyzers.advisors.compression import instance
from esprof.analyzers.advisors.compression.search import algorithm_1, heuristic
from esprof.core.errors import InputError

ESPRESSO = Path(__file__).parents[6] / "shared/data/espresso"
needs_espresso = pytest.mark.skipif(not ESPRESSO.is_dir(), reason="Espresso's published instances are not here")

VALUES_US = {
    # (model, as shipped): all FP32, all FP16, Algorithm 1, optimum
    ("vgg16", True): (1_061_099.6, 535_343.2, 63_273.8, 63_273.8),
    ("lstm", True): (656_403.6, 329_705.2, 33_630.729, 33_630.729),
    ("bert", True): (887_178.4, 473_402.8, 229_458.353, 229_458.353),
    ("resnet101", True): (432_584.4, 263_294.8, 187_717.8, 187_717.8),
    ("vgg16", False): (1_061_099.6, 535_343.2, 101_253.4, 97_143.4),
    ("lstm", False): (691_074.6, 364_506.9, 94_931.357, 94_652.408),
    ("bert", False): (887_178.4, 473_402.8, 229_458.353, 229_458.353),
    ("resnet101", False): (432_584.4, 263_294.8, 187_717.8, 187_717.8),
}
"""Values of Espresso's simulator (EuroSys 2023, its artifact) on its own data, optima by an exact search of others, us."""


@needs_espresso
@pytest.mark.parametrize(("model", "as_shipped"), VALUES_US)
def test_published_values_and_optima(model, as_shipped):
    fp32, fp16, paper, optimum = VALUES_US[model, as_shipped]
    path = ESPRESSO / f"{model}.json"
    priced = instance.load(path, as_shipped=as_shipped)
    timeline, count = priced.timeline, len(priced.sizes)
    assert timeline.end_ns(np.zeros(count, np.int64)) / 1000 == pytest.approx(fp32, abs=0.1)
    assert timeline.end_ns(np.ones(count, np.int64)) / 1000 == pytest.approx(fp16, abs=0.1)
    assert timeline.end_ns(algorithm_1(timeline, priced.sizes)) / 1000 == pytest.approx(paper, abs=0.1)
    assert timeline.end_ns(heuristic(timeline, priced.sizes)) / 1000 == pytest.approx(optimum, abs=1)
    answer = instance.solve(path, as_shipped=as_shipped)
    assert answer.value_us == pytest.approx(optimum, abs=1)
    assert (answer.gap_kind, answer.gap_pct) == ("exact", 0)
    chosen = np.array([priced.options.index(choice) for choice in answer.choices])
    assert timeline.end_ns(chosen) / 1000 == pytest.approx(answer.value_us, abs=1e-3)


def written(folder, costs=None, **changes):
    tensors = [{"name": "w", "numel": 1000}, {"name": "v", "numel": 5_000_000}]
    content = {"model": "mine", "tensors": tensors, "ready_gap_us": [0, 1500], "compressor": "fast", "options": [0, 2]}
    content |= changes
    channel = {"alpha_us": 10, "beta1_us_per_kB": {"pcie": 0.4}, "beta2_us_per_kB": 0.8, "nodes": 2, "gpus_per_node": 2}
    fast = {"total_us": [0, 1, 2, 3], "decode_us": [0, 0.5, 1, 1], "wire_ratio": 0.1}
    table = {"base_elements": 1 << 20, "gpu_compression": {"fast": fast}, "communication": channel}
    (folder / "compression_costs.json").write_text(json.dumps(table if costs is None else costs))
    path = folder / "mine.json"
    path.write_text(json.dumps({key: value for key, value in content.items() if value is not None}))
    return path


def test_fields_of_the_file_override_published_values(tmp_path):
    answer = instance.solve(written(tmp_path), as_shipped=False)
    assert set(answer.choices) <= {0, 2}
    assert answer.choices[1] == 2
    slower = instance.solve(written(tmp_path, beta1_us_per_kb=4.0), as_shipped=False)
    assert slower.value_us > answer.value_us
    assert instance.solve(written(tmp_path), as_shipped=True).value_us < answer.value_us


def test_the_result_is_replayed(tmp_path, monkeypatch):
    path = written(tmp_path)
    before = instance.solve(path, as_shipped=False).value_us
    real = instance.replay

    def doubled(dfg):
        chosen = real(dfg)
        object.__setattr__(chosen, "end_ns", 2 * chosen.end_ns)
        return chosen

    monkeypatch.setattr(instance, "replay", doubled)
    assert instance.solve(path, as_shipped=False).value_us == pytest.approx(2 * before)


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"compressor": None}, "not a published one"),
        ({"compressor": "unheard of"}, "are unknown"),
        ({"ready_gap_us": [0]}, "2 tensors and 1 times"),
        ({"ready_gap_us": [0, -1]}, "not an instance"),
        ({"tensors": []}, "not an instance"),
        ({"options": [0, 4]}, "not an instance"),
        ({"tensors": [{"name": "w", "numel": 0}] * 2}, "not an instance"),
    ],
)
def test_invalid_instances_are_rejected_with_a_reason(tmp_path, changes, reason):
    with pytest.raises(InputError, match=reason):
        instance.solve(written(tmp_path, **changes), as_shipped=False)


def test_the_cost_file_must_be_in_the_same_folder(tmp_path):
    path = written(tmp_path)
    (tmp_path / "compression_costs.json").unlink()
    with pytest.raises(InputError, match="compression_costs"):
        instance.solve(path, as_shipped=False)
