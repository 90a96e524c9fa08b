"""The fuzzing of `benchmarks.fuzz`: that it finds faults, and the inputs that once showed one."""

import json
from pathlib import Path
from random import Random

import pytest

from benchmarks.fuzz.mutations import mutated
from benchmarks.fuzz.targets import TARGETS, Target
from benchmarks.fuzz.worker import STRANGE, Attempts
from esprof.core.errors import InputError

pytestmark = pytest.mark.slow

DEEP = b"[" * 3_000
FOUND = {
    "brackets": DEEP,
    "brackets in a field": b'{"schema": ' + DEEP,
    "brackets in an unknown field": b'{"x": ' + DEEP + b"]" * 3_000 + b"}",
    "brackets in TOML": b"x = " + DEEP,
    "a text that is not UTF-8": b'{"step": 1, "reason": "\xff", "asked": true, "stopped_ns": 1, "what": "\xff"}',
    "no such day": b"cluster: 2001-99-99",
    "no digits": b"cluster: 0b_",
    "an alias of itself": b"cluster: &a [*a]",
    "keys that are lists": b"{[a]: b}",
}
"""Each is given to every target in place of each of its files."""


@pytest.fixture(scope="module")
def attempts(tmp_path_factory):
    """The attempts at a target of this name."""
    made = {}

    def of(name):
        if name not in made:
            made[name] = Attempts(TARGETS[name], tmp_path_factory.mktemp("target") / "folder", None)
        return made[name]

    return of


@pytest.mark.parametrize("name", TARGETS)
def test_a_valid_input_is_read(tmp_path, name):
    target = TARGETS[name]
    target.make(tmp_path)
    target.read(tmp_path)


@pytest.mark.parametrize("name", TARGETS)
def test_no_found_input_raises_a_foreign_exception(attempts, name):
    for content in FOUND.values():
        for file in TARGETS[name].files:
            attempts(name).take(file, content)
    assert attempts(name).counts.faults == {}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", [name for name, target in TARGETS.items() if target.is_shared])
def test_nothing_in_the_place_of_a_file_blocks_or_raises_a_foreign_exception(attempts, name):
    for strange in STRANGE:
        for file in TARGETS[name].files:
            attempts(name).take(file, b"", strange)
    assert attempts(name).counts.faults == {}


def test_an_exception_that_is_not_esprof_s_is_a_fault_and_its_input_is_kept(tmp_path):
    def read(folder):
        value = json.loads((folder / "a.json").read_text())
        if value != {"a": 1}:
            raise InputError("is not valid") if isinstance(value, dict) else KeyError("a")

    target = Target(make=lambda folder: (folder / "a.json").write_text('{"a": 1}'), files=("a.json",), read=read)
    tried = Attempts(target, tmp_path / "folder", tmp_path / "found")
    for content in (b'{"a": 1}', b"{}", b"[]", b"[1]"):
        tried.take("a.json", content)
    assert (tried.counts.inputs, tried.counts.answered, tried.counts.refused) == (4, 1, 1)
    ((fault, times),) = tried.counts.faults.items()
    assert (fault.partition(" at ")[0], times) == ("KeyError", 2)
    (kept,) = (tmp_path / "found").iterdir()
    assert (kept / "input" / "a.json").read_bytes() == b"[]"


def test_changes_depend_on_the_seed_alone_and_most_change_something():
    valid = Path(__file__).read_bytes()[:500]
    changed = [mutated(Random(seed), valid) for seed in range(200)]
    assert changed == [mutated(Random(seed), valid) for seed in range(200)]
    assert sum(content != valid for content in changed) > 180
    assert len(set(changed)) > 180
