"""The stacks in `examples/stacks`, recorded by the command that each of them names."""

import re
import shlex
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from esprof.analyzers import diagnose
from tests.cases.marks import soak
from tests.cases.record import record

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
STACKS = ROOT / "examples" / "stacks"


def command_of(script: Path) -> list[str]:
    """The command that the script's own words have recorded."""
    said = re.search(r"^esprof record -o run -- (.*)$", script.read_text(), re.MULTILINE)
    words = shlex.split(said[1].replace("examples/", f"{ROOT}/examples/"))
    launcher = {
        "python": [],
        "torchrun": ["-m", "torch.distributed.run"],
        "accelerate": ["-m", "accelerate.commands.accelerate_cli"],
    }
    return [sys.executable, *launcher[words[0]], *words[1:]]


@pytest.mark.parametrize(
    ("name", "needs", "ranks", "by"),
    [
        ("server", None, 1, "job"),
        soak("spawned", None, 2, "optimizer"),
        soak("fsdp2", None, 2, "optimizer"),
        soak("huggingface", "transformers", 2, "optimizer"),
        soak("accelerated", "accelerate", 1, "optimizer"),
        soak("lit", "lightning", 2, "optimizer"),
    ],
)
def test_a_stack_is_recorded_as_it_is(name, needs, ranks, by, tmp_path):
    if needs and find_spec(needs) is None:
        pytest.skip(f"{needs} is not installed")
    command = command_of(STACKS / f"{name}.py")
    ended = record(tmp_path / "run", [*command], {"ACCELERATE_USE_CPU": "true"})
    assert ended.code == 0, ended.stderr
    assert ended.run.ranks == list(range(ranks))
    assert ended.warnings == []
    assert {ended.run.rank(rank).paced_by for rank in ended.run.ranks} == {by}
    diagnosis = diagnose(ended.run)
    assert diagnosis.explained_pct > 50
    assert diagnosis.replay_error_pct < 2
