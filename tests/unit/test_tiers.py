"""`make test` and `make test-all`: together they run every test, but for the long ones."""

import re
from itertools import chain, combinations
from pathlib import Path

import pytest
from _pytest.mark.expression import Expression

MAKEFILE = (Path(__file__).parents[2] / "Makefile").read_text()
MARKS = ("integration", "promise", "slow", "thorough", "soak")
MARKED = list(chain.from_iterable(combinations(MARKS, count) for count in range(len(MARKS) + 1)))


def takes(target: str, marks: tuple[str, ...]) -> bool:
    """Whether `make TARGET` runs a test with these marks."""
    (expression,) = re.findall(rf'^{target}:.*\n\t.* -m "([^"]+)"', MAKEFILE, re.MULTILINE)
    return Expression.compile(expression).evaluate(lambda name, **_: name in marks)


@pytest.mark.parametrize("marks", MARKED, ids=",".join)
def test_each_test_is_in_one_tier(marks):
    tiers = [target for target in ("test", "test-all") if takes(target, marks)]
    if "soak" in marks:
        assert tiers == []
    elif "thorough" in marks and "test" in tiers and "promise" not in marks:
        assert tiers == ["test", "test-all"]
    else:
        assert len(tiers) == 1


def test_the_quick_tier_has_unit_tests_and_promises():
    assert takes("test", ())
    assert takes("test", ("integration", "promise"))
    assert not takes("test", ("integration",))
    assert not takes("test", ("slow",))


def test_ci_runs_both():
    (targets,) = re.findall(r"^make (.*)", (Path(__file__).parents[2] / ".ci" / "run").read_text(), re.MULTILINE)
    assert targets.split()[-2:] == ["test", "test-all"]
