"""Requests to leave: who is told, when all go, and what a process's SIGTERM is before and after."""

import gc
import os
import signal
import threading
import time

import pytest
import torch
from torch.optim.swa_utils import AveragedModel

from esprof.core.errors import MismatchError, UsageError
from esprof.elastic import Assignment, Drain, Drained
from tests.cases.elastic import on_threads
from tests.cases.elastic_job import Net, small_trainer

pytestmark = [
    pytest.mark.filterwarnings("ignore:the job leaves without a checkpoint"),
    pytest.mark.filterwarnings("ignore:no handler for SIGTERM"),
]


@pytest.fixture
def taken():
    """The signals that a handler of the script's own has got; it is there before and after the test."""
    got = []
    before = signal.signal(signal.SIGTERM, lambda number, frame: got.append(number))
    mine = signal.getsignal(signal.SIGTERM)
    yield got
    assert signal.getsignal(signal.SIGTERM) == mine
    signal.signal(signal.SIGTERM, before)


def left(trainer):
    """How it leaves, sooner or later."""
    with pytest.raises(Drained) as raised:
        make_steps(trainer)
    trainer.close()
    return raised.value.code, raised.value.step, raised.value.reason


def make_steps(trainer, then=lambda result: None):
    for result in trainer.fit(100):
        then(result)


def test_one_rank_asks_and_all_leave_before_the_same_step():
    def body(transport):
        asked = Drain(exit_code=1, follower_exit_code=2)
        trainer = small_trainer(transport=transport, assignment=Assignment.of([[0, 2], [3], [1]]), drain=asked)
        for step in range(4):
            assert not trainer.is_leaving
            if (step, transport.rank) == (3, 2):
                trainer.request_drain("maintenance")
            trainer.step()
        assert trainer.is_leaving
        return left(trainer)

    follows = (2, 4, "maintenance (rank 2)")
    assert on_threads(3, body) == [follows, follows, (1, 4, "maintenance")]


def test_fit_raises_it_and_no_step_is_made_after_it():
    trainer, steps = small_trainer(drain=Drain()), []

    def ask(result):
        steps.append(result.step)
        if result.step == 1:
            trainer.request_drain("enough")

    with pytest.raises(Drained):
        make_steps(trainer, ask)
    assert steps == [0, 1, 2]  # The request is told with the losses of a step.
    with pytest.raises(UsageError, match="it has left"):
        trainer.step()
    trainer.close()


def test_what_the_script_does_after_the_last_step_is_in_the_checkpoint(tmp_path):
    model, average = averaged_model()
    trainer = small_trainer(model=lambda: model, state={"average": average}, folder=tmp_path, drain=Drain())

    def ask(_):
        average.update_parameters(model)
        trainer.request_drain("enough")

    with pytest.raises(Drained):
        make_steps(trainer, ask)
    trainer.close()
    again, loaded = averaged_model()
    small_trainer(model=lambda: again, state={"average": loaded}, folder=tmp_path)
    for before, after in zip(average.parameters(), loaded.parameters(), strict=True):
        assert torch.equal(before, after)


def averaged_model():
    torch.manual_seed(0)
    model = Net(5)
    return model, AveragedModel(model)


def test_it_takes_drain_to_leave():
    trainer = small_trainer()
    assert not trainer.is_leaving
    with pytest.raises(UsageError, match="does not accept requests to leave"):
        trainer.request_drain("enough")


def test_without_a_folder_it_is_said_that_nothing_is_saved():
    trainer = small_trainer(drain=Drain())
    trainer.request_drain("enough")
    with pytest.warns(UserWarning, match="the job leaves without a checkpoint"):
        left(trainer)


def test_sigterm_is_the_trainers_until_it_is_closed(taken):
    first, second = small_trainer(drain=Drain()), small_trainer(drain=Drain())
    second.close()
    signal.raise_signal(signal.SIGTERM)
    assert left(first) == (0, 1, "SIGTERM")
    assert taken == []
    signal.raise_signal(signal.SIGTERM)
    assert taken == [signal.SIGTERM]


def test_a_trainer_that_was_dropped_gives_sigterm_back_when_it_comes(taken):
    trainer = small_trainer(drain=Drain())
    del trainer
    gc.collect()
    signal.raise_signal(signal.SIGTERM)
    assert taken == [signal.SIGTERM]


def test_a_thread_that_wakes_by_itself_does_not_close_what_is_being_written_to(taken, monkeypatch):
    trainer, write = small_trainer(drain=Drain()), os.write

    def late(descriptor, data):
        write(descriptor, data)  # As a signal that comes just then.
        time.sleep(0.2)
        return write(descriptor, data)

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", late)
        trainer.close()


def test_what_one_trainer_did_not_heed_the_next_is_reported(taken):
    trainer = small_trainer(drain=Drain())
    signal.raise_signal(signal.SIGTERM)
    trainer.close()
    assert left(small_trainer(drain=Drain())) == (0, 1, "SIGTERM")
    trainer = small_trainer(drain=Drain())
    trainer.step()
    assert not trainer.is_leaving
    trainer.close()


def test_who_had_the_wakeup_descriptor_still_hears_and_gets_it_back(taken):
    read, write = os.pipe()
    os.set_blocking(write, False)
    before = signal.set_wakeup_fd(write)
    try:
        trainer = small_trainer(drain=Drain())
        signal.raise_signal(signal.SIGTERM)
        assert os.read(read, 1) == bytes([signal.SIGTERM])
        left(trainer)
        assert signal.set_wakeup_fd(write) == write
    finally:
        signal.set_wakeup_fd(before)
        os.close(read)
        os.close(write)


def test_a_child_does_not_hear_for_its_parent(taken):
    trainer = small_trainer(drain=Drain())
    pid = os.fork()
    if pid == 0:
        signal.raise_signal(signal.SIGTERM)
        os._exit(len(taken))
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 1
    trainer.step()
    assert not trainer.is_leaving
    trainer.close()


def test_outside_of_the_main_thread_there_is_still_the_call(taken):
    answers = []

    def body():
        with pytest.warns(UserWarning, match="no handler for SIGTERM"):
            trainer = small_trainer(drain=Drain())
        trainer.request_drain("enough")
        answers.append(left(trainer))

    thread = threading.Thread(target=body)
    thread.start()
    thread.join()
    assert answers == [(0, 1, "enough")]


def test_a_notice_file_that_is_there_asks_at_once(tmp_path):
    notice = tmp_path / "notice"
    notice.touch()
    assert left(small_trainer(drain=Drain(notice=notice)))[2] == f"notice file {notice}"


def test_nothing_is_installed_without_drain(taken):
    mine = signal.getsignal(signal.SIGTERM)
    trainer = small_trainer()
    trainer.step()
    assert signal.getsignal(signal.SIGTERM) == mine
    assert not [thread for thread in threading.enumerate() if thread.name == "esprof-drain"]


def test_ranks_of_which_one_would_not_leave_are_refused():
    def body(transport):
        small_trainer(transport=transport, drain=Drain() if transport.rank else None)

    with pytest.raises(MismatchError, match="drain is False on rank 0 and True on rank 1"):
        on_threads(2, body)
