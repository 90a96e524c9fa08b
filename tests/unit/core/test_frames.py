import gc
import sys
import threading

from esprof.core.frames import outwards, stack_of, stacks


def deep(depth: int, reached: threading.Event, leave: threading.Event) -> None:
    if depth:
        deep(depth - 1, reached, leave)
    else:
        reached.set()
        leave.wait()


def names(stack):
    return [code.co_name for code, _, _ in stack]


def test_no_collection_runs_while_a_stack_is_read():
    """In Python 3.11 one could let the thread go on, whose frames then were gone: the job crashed."""
    reached, leave, collected_in = threading.Event(), threading.Event(), []

    def note(phase, info):
        collected_in.append(sys._getframe().f_back.f_code.co_name)

    thread = threading.Thread(target=deep, args=(100, reached, leave))
    thread.start()
    reached.wait()
    thresholds = gc.get_threshold()
    gc.callbacks.append(note)
    gc.set_threshold(1)
    try:
        stack = stack_of(thread.ident)
    finally:
        gc.set_threshold(*thresholds)
        gc.callbacks.remove(note)
        leave.set()
        thread.join()
    assert names(stack).count("deep") == 101
    assert collected_in  # The code before and after the read may collect.
    assert "_outwards" not in collected_in


def test_frames_come_innermost_first_and_as_many_as_asked_for():
    def called():
        return outwards(sys._getframe()), outwards(sys._getframe(), 1)

    whole, one = called()
    assert names(whole[:2]) == ["called", sys._getframe().f_code.co_name]
    assert names(one) == ["called"]
    assert outwards(None) == []


def test_a_threads_stack_is_that_of_its_number():
    own = threading.get_ident()
    assert stack_of(own)[-1] == stacks()[own][-1]
    assert stack_of(-1) == []


def test_what_a_thread_owns_is_finalized_by_it():
    """A tensor that the reader freed was not among the allocations of the training thread, and seemed to be kept."""
    reached, leave, finalized_by = threading.Event(), threading.Event(), []

    class Owned:
        def __del__(self):
            finalized_by.append(threading.get_ident())

    def owner():
        owned = Owned()
        deep(3, reached, leave)
        return owned is None

    thread = threading.Thread(target=owner)
    thread.start()
    reached.wait()
    looks = stack_of(thread.ident), stacks()
    leave.set()
    thread.join()
    assert "owner" in names(looks[0])
    del looks
    assert finalized_by == [thread.ident]


def test_collection_stays_off_where_the_job_has_turned_it_off():
    gc.disable()
    try:
        stack_of(threading.get_ident())
        assert not gc.isenabled()
    finally:
        gc.enable()
    stack_of(threading.get_ident())
    assert gc.isenabled()
