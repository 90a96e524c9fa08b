"""The porting guide: its scripts print the same on any processes, and learn what their originals do; its code runs."""

import os
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.cases import record

pytestmark = pytest.mark.integration

ROOT = Path(__file__).parents[2]
PORTED = ROOT / "examples" / "porting"


def output_of(command, folder=None):
    variables = os.environ | {"OMP_NUM_THREADS": "1", "ACCELERATE_USE_CPU": "true"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, env=variables, cwd=folder)
    assert done.returncode == 0, done.stderr
    return record.without_gloos_words(done.stdout)


def ported(name, processes):
    return output_of(record.ranks(processes, PORTED / name))


@pytest.mark.skipif(find_spec("lightning") is None, reason="lightning is not installed")
def test_a_lightning_module_trains_equally_on_one_and_two_processes():
    assert "loss" in (alone := ported("lit.py", 1))
    assert ported("lit.py", 2) == alone


def test_an_accelerate_loop_trains_equally_on_one_and_two_processes():
    assert "loss" in (alone := ported("accelerated.py", 1))
    assert ported("accelerated.py", 2) == alone


@pytest.mark.skipif(find_spec("accelerate") is None, reason="accelerate is not installed")
def test_training_matches_the_original_accelerate_loop():
    """Of random labels nothing can be learnt in one epoch: both end near the logarithm of their number."""
    original = output_of([sys.executable, str(ROOT / "examples" / "stacks" / "accelerated.py")])
    losses = [float(re.search(r"loss ([\d.]+)", text)[1]) for text in (original, ported("accelerated.py", 1))]
    assert losses[0] == pytest.approx(losses[1], abs=0.25)


def test_the_guides_code_runs(tmp_path):
    text = (ROOT / "docs" / "how-to" / "porting.md").read_text()
    for number, block in enumerate(re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)):
        script = tmp_path / f"block-{number}.py"
        script.write_text(block)
        output_of([sys.executable, str(script)], tmp_path)
    assert (tmp_path / "job").is_dir()
    assert (tmp_path / "log.jsonl").exists()


def test_the_guide_shows_every_option():
    from esprof.elastic import Checkpoint, Data, Drain, ElasticTrainer, Gradients, Placement, Proof, Tuning, Updates

    text = (ROOT / "docs" / "how-to" / "porting.md").read_text()
    shown = re.search(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
    made = (Data, Updates, Gradients, Checkpoint, Proof, Drain, Placement, Tuning)
    groups = [name for group in made for name in group.__dataclass_fields__]
    own = ElasticTrainer.__init__.__kwdefaults__
    missing = {*groups, *own} - {"_", "folder", "run", "transport", "dataset"} - set(re.findall(r"\w+", shown))
    assert missing == set()
