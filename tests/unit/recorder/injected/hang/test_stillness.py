"""What counts as getting on, in threads that really run."""

import subprocess
import sys
import threading
import time
from contextlib import contextmanager

import pytest
import torch.distributed as dist

from esprof.recorder.injected.hang.stillness import Stillness

PATIENCE_NS = 400_000_000
GROUPS = 40


@pytest.fixture
def process_groups(tmp_path):
    """Gloo's threads, which wake a hundred times a second: one for each group, all of them a few % of a CPU."""
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/store", rank=0, world_size=1)
    groups = [dist.new_group([0]) for _ in range(GROUPS)]
    yield groups
    dist.destroy_process_group()


@contextmanager
def thread(work):
    """A thread that does `work` again and again."""
    over = threading.Event()

    def run():
        while not over.is_set():
            work(over)

    running = threading.Thread(target=run)
    running.start()
    try:
        yield running.ident
    finally:
        over.set()
        running.join()


def looked_at(ident, until):
    """Looks at the thread until `until(stillness)` holds."""
    stillness = Stillness(PATIENCE_NS)
    for _ in range(3_000):
        stillness.observe(ident)
        if until(stillness):
            return True
        time.sleep(0.01)
    return False


def test_a_thread_that_waits_stands_still():
    with thread(lambda over: over.wait()) as ident:
        assert looked_at(ident, lambda stillness: stillness.idle_ns > PATIENCE_NS)


def test_a_waiting_loop_makes_no_progress():
    with thread(lambda over: over.wait(0.005)) as ident:
        assert looked_at(ident, lambda stillness: stillness.same_place_ns > PATIENCE_NS)


def test_polling_threads_are_not_busy(process_groups):
    with thread(lambda over: over.wait()) as ident:
        assert looked_at(ident, lambda stillness: stillness.idle_ns > PATIENCE_NS)


def test_threads_that_come_and_go_do_something():
    def brief(over):
        worker = threading.Thread(target=sum, args=(range(100_000),))
        worker.start()
        worker.join()

    with thread(brief), thread(lambda over: over.wait()) as ident:
        assert looked_at(ident, lambda stillness: stillness.same_place_ns > PATIENCE_NS > stillness.idle_ns)


def test_a_process_that_computes_at_one_line_is_busy():
    def compute(over):
        while not over.is_set():
            pass

    with thread(compute) as ident:
        assert looked_at(ident, lambda stillness: stillness.same_place_ns > PATIENCE_NS > stillness.idle_ns)


def test_who_waits_for_a_child_that_computes_does_something():
    child = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        with thread(lambda over: over.wait()) as ident:
            assert looked_at(ident, lambda stillness: stillness.same_place_ns > PATIENCE_NS > stillness.idle_ns)
    finally:
        child.kill()
        child.wait()
