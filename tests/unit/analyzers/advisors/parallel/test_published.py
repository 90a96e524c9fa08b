"""Readers of layer profiles: PipeDream's graphs and esprof's own files."""

from pathlib import Path

import pytest

from esprof.analyzers.advisors.parallel.advise import advise_parallel
from esprof.analyzers.advisors.parallel.profile import Devices
from esprof.analyzers.advisors.parallel.published import read_profile
from esprof.core.errors import InputError

_PUBLISHED = Path("../shared/data/pipedream")


def _node(name: str, text: str, forward: float = 1.0, output: str = "100.0") -> str:
    return (
        f"{name} -- {text} -- forward_compute_time={forward:.3f}, backward_compute_time=2.000, "
        f"activation_size={output}, parameter_size=8.000"
    )


def _written(tmp_path: Path, *lines: str) -> Path:
    path = tmp_path / "graph.txt"
    path.write_text("\n".join(lines))
    return path


def test_branches_stay_in_one_layer(tmp_path: Path) -> None:
    nodes = [
        _node("n0", "Input0", 50),
        _node("n1", "Conv2d(3, 64, kernel_size=(1, 1))"),
        _node("n2", "ReLU"),
        _node("n3", "ReLU"),
        _node("n4", "Add", output="[10.0; 20.0]"),
        _node("n5", "Linear"),
    ]
    edges = ["n0 n1", "n1 n2", "n1 n3", "n2 n4", "n3 n4", "n4 n5"]
    profile = read_profile(_written(tmp_path, *nodes, *("\t" + edge.replace(" ", " -- ") for edge in edges)))
    assert [one.name for one in profile.layers] == ["n1", "n2 to n4", "n5"]
    assert [one.output_bytes for one in profile.layers] == [100, 30, 0]
    assert [one.kept for one in profile.layers] == [100, 230, 100]
    assert [one.times["any"].forward_us for one in profile.layers] == [1000, 3000, 1000]


def test_an_output_that_skips_layers_is_sent_across_each_cut(tmp_path: Path) -> None:
    nodes = [_node("n1", "Conv2d"), _node("n2", "ReLU"), _node("n3", "Add")]
    profile = read_profile(_written(tmp_path, *nodes, "\tn1 -- n2", "\tn2 -- n3", "\tn1 -- n3"))
    assert [one.output_bytes for one in profile.layers] == [100, 200, 0]


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (["no node"], "line 1 is neither a node nor an edge"),
        ([_node("n1", "ReLU"), "\tn1 -- n2"], "line 2 names an unknown node n2"),
        ([_node("n1", "ReLU"), "\tn1 -- n1"], "cycle"),
        (["n1 -- ReLU -- forward_compute_time=1.0"], "line 1 has no valid 'backward_compute_time'"),
        ([_node("n1", "ReLU", -1.0)], "layer n1 has a number that is negative"),
        ([], "lists no layer"),
    ],
)
def test_a_bad_graph_is_an_error_with_its_place(tmp_path: Path, lines: list[str], reason: str) -> None:
    with pytest.raises(InputError, match=reason):
        read_profile(_written(tmp_path, *lines))


def test_a_json_profile_with_impossible_times_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "layers.json"
    path.write_text(
        '{"layers": [{"name": "a", "output_bytes": 1, "parameter_bytes": 1,'
        ' "times": {"V100": {"forward_us": 1, "backward_us": 1, "weights_us": 2}}}]}'
    )
    with pytest.raises(InputError, match="layer a has a weights_us above its backward_us"):
        read_profile(path)


@pytest.mark.skipif(not _PUBLISHED.exists(), reason="PipeDream's profiles are not here")
def test_pipedreams_profiles_give_its_published_configurations() -> None:
    vgg16, resnet50 = (read_profile(_PUBLISHED / f"{name}.graph.txt") for name in ("vgg16", "resnet50"))
    for profile, work_ms, parameters in ((vgg16, 672.535, 553_430_176), (resnet50, 443.419, 102_228_128)):
        times = [one.times["any"] for one in profile.layers]
        assert sum(one.forward_us + one.backward_us for one in times) == pytest.approx(1e3 * work_ms)
        assert sum(one.parameter_bytes for one in profile.layers) == parameters
    for profile, devices, replicas in ((vgg16, 4, [3, 1]), (vgg16, 16, [15, 1]), (resnet50, 16, [16])):
        inventory = Devices(devices={"V100": devices}, network_gb_per_s=1.0)
        best = advise_parallel(profile, inventory, 4 * devices).plans[0]
        assert [stage.replicas for stage in best.stages] == replicas
