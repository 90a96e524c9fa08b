"""What counts as getting on, in threads that really run."""

import subprocess
import sys
import threading
import time
from contextlib import contextmanager

from esprof.recorder.injected.stillness import Stillness

PATIENCE_NS = 400_000_000


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
        stillness.look(ident)
        if until(stillness):
            return True
        time.sleep(0.01)
    return False


def test_a_thread_that_waits_stands_still():
    with thread(lambda over: over.wait()) as ident:
        assert looked_at(ident, lambda stillness: stillness.idle_ns > PATIENCE_NS)


def test_a_loop_that_waits_comes_to_no_new_place():
    with thread(lambda over: over.wait(0.005)) as ident:
        assert looked_at(ident, lambda stillness: stillness.same_place_ns > PATIENCE_NS)


def test_who_computes_at_one_place_does_something():
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
