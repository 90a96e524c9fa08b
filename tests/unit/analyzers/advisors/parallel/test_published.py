"""Readers of layer profiles: PipeDream's graphs and esprof's own files."""

from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from esprof.analyzers.advisors.parallel.advise import advise_parallel
from esprof.analyzers.advisors.parallel.partition import search
from esprof.analyzers.advisors.parallel.problem import Problem, Stage, ranges
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


class _PipeDream(Problem):
    """The same layers with the times of a stage that PipeDream's released optimizer assumes: replicas exchange gradients
    after each minibatch, and a transfer of activations or gradients overlaps with everything else."""

    @cached_property
    def stages_us(self) -> np.ndarray:
        """Without the transfer to the stage behind: it is that stage's, too."""
        replicas = np.arange(1, int(self.counts.max()) + 1)[:, None, None]
        exchange_us = 4 * (replicas - 1) / replicas * self.us_per_byte_between * ranges(self.parameters)[: self.layers]
        work_us = (ranges(self.work_us[0])[: self.layers] + exchange_us) / replicas
        times = np.maximum(work_us, 2 * self.receive_us[:, None] / replicas)
        return np.broadcast_to(times, (2, 1, *times.shape))

    def stage_us(self, stage: Stage) -> float:
        return float(self.stages_us[0, 0, stage.replicas - 1, stage.first, stage.end])

    def bottleneck_us(self, split: tuple[Stage, ...]) -> float:
        sent_us = [2 * self.receive_us[behind.first] / stage.replicas for stage, behind in pairwise(split)]
        return max([*sent_us, *map(self.stage_us, split)])


@pytest.mark.skipif(not _PUBLISHED.exists(), reason="PipeDream's profiles are not here")
@pytest.mark.parametrize(
    ("name", "devices", "gb_per_s", "seconds"),
    [
        ("vgg16", 4, 1.0, 0.205520896),
        ("vgg16", 8, 1.0, 0.10383317028571429),
        ("vgg16", 16, 1.0, 0.05652976738461538),
        ("vgg16", 16, 1.25, 0.05479489083076924),
        ("resnet50", 4, 1.0, 0.162880924),
        ("resnet50", 8, 1.0, 0.09201227200000005),
        ("resnet50", 16, 1.0, 0.04780134530612244),
    ],
)
def test_the_search_finds_pipedreams_optima(name: str, devices: int, gb_per_s: float, seconds: float) -> None:
    profile = read_profile(_PUBLISHED / f"{name}.graph.txt")
    # With so many minibatches in flight only the longest stage counts.
    problem = _PipeDream.of(profile, Devices(devices={"any": devices}, network_gb_per_s=gb_per_s), 10**9)
    assert min(map(problem.bottleneck_us, search(problem))) <= 1e6 * seconds * (1 + 1e-6)
