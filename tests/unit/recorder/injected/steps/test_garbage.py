"""Collections of Python's garbage, noted as stages."""

import gc
import threading

import pytest

from esprof.recorder.injected.state import StepState
from esprof.recorder.injected.steps.garbage import CollectionProbe


@pytest.fixture
def lines():
    """Where the thread was looked at: the function, and its line."""
    return []


@pytest.fixture
def noted(lines):
    state, found = StepState(), []
    state.thread = threading.get_ident()

    def sample_at(frame):
        lines.append((frame.f_code.co_name, frame.f_lineno))

    CollectionProbe(state, found.append, sample_at).install()
    gc.disable()
    yield found
    gc.enable()
    gc.callbacks.pop()


def test_a_long_collection_is_noted_and_a_short_one_is_not(noted, lines):
    garbage = [[number] for number in range(300_000)]
    gc.collect()
    (found,) = lines
    code = test_a_long_collection_is_noted_and_a_short_one_is_not.__code__
    assert found == (code.co_name, code.co_firstlineno + 2)
    assert [row[0] for row in noted] == ["garbage collection"]
    assert noted[0][1] < noted[0][2]
    del garbage
    gc.freeze()  # All that is left; and what conftest.py has frozen stays so.
    gc.collect(0)
    assert len(noted) == 1


def test_a_collection_of_another_thread_is_not_the_training_s(noted):
    garbage = [[number] for number in range(300_000)]
    other = threading.Thread(target=gc.collect)
    other.start()
    other.join()
    assert noted == []
    del garbage
