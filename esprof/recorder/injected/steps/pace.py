"""Find what ends the steps of the job: its own calls, an optimizer, a DataLoader's batches, or the calls of a module.

A training job has an optimizer. In other jobs, such as inference or evaluation, a step is the time between two batches of a
DataLoader if modules are called in between and, without a DataLoader, the time between two calls of the outermost module.
"""

import functools
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils.data import get_worker_info

from ....run.raw.paced import PacedBy
from ...shared.torch_features import hide_from_dynamo
from .. import optimizers
from ..hang import loader_waits
from ..log.circuit_breaker import CircuitBreaker
from .module_calls import OutermostCalls

_MAX_MARKS_OF_OTHERS = 50
"""Marks of others after which the optimizer, the iterator or the module that marked the steps counts as done: a training may
follow another."""

_MAX_ABSENCE_S = 30.0
"""Absence after which another thread may take over: the main thread, for example, may only have tried the model."""

_MAX_BATCHES_BEFORE_TRAINING = 20
"""Batches without gradients after which a process whose optimizer has never stepped counts as one that only evaluates:
trainers that try the validation before the training take fewer."""

_MAX_CALLS_IN_BATCH = 1000
"""Calls of modules within one batch above which batches mark no steps: the loop continues without the loader."""


class Pace:
    """Calls `on_boundary` at the end of each step with what ended it, on the thread that runs the step."""

    def __init__(self, on_boundary: Callable[[PacedBy], None], breaker: CircuitBreaker) -> None:
        self._on_boundary = on_boundary
        self._breaker = breaker
        self._by: PacedBy | None = None
        self._optimizers = _First(begins=False)
        self._iterators = _First(begins=False)
        self._modules = _First(begins=True)
        self._calls = OutermostCalls(lambda module: breaker.run(self._module_returned, module))
        self._caller = OneThread()
        self._has_optimizer = False
        self._iterator: weakref.ref[object] | None = None
        """The iterator of a DataLoader that was asked last."""
        self._thread = 0
        """The thread that asked it."""
        self._calls_in_batch = 0
        """Calls of outermost modules in that thread since then."""
        self._evaluated = 0
        """Batches without gradients in a row."""

    def install(self) -> None:
        def after_step(optimizer: Optimizer, args: object, kwargs: object) -> None:
            self._breaker.run(self._optimizer_stepped, optimizer)

        # A compiled training step calls the hook as it is: the recorder's work is not to be compiled.
        hide_from_dynamo(after_step, with_callees=True)
        register_optimizer_step_post_hook(after_step)
        self._watch_optimizers()
        self._calls.install()

    def job_stepped(self) -> None:
        """End a step at the job's request."""
        self._boundary(PacedBy.JOB)

    def batch_wanted(self, iterator: Any) -> None:
        """A DataLoader's iterator is asked for a batch, by this thread. Its first one of an epoch ends no step."""
        if not self._may_mark(PacedBy.LOADER) or get_worker_info() is not None:
            return
        thread = threading.get_ident()
        worked = self._calls_in_batch > 0 and thread == self._thread
        self._iterator, self._thread, self._calls_in_batch = weakref.ref(iterator), thread, 0
        if self._has_optimizer:  # Calls of modules are no longer watched.
            self._evaluated = 0 if torch.is_grad_enabled() else self._evaluated + 1
            worked = self._evaluated > _MAX_BATCHES_BEFORE_TRAINING
        if iterator._num_yielded and (worked or self._by is PacedBy.LOADER) and self._iterators.marks(iterator):
            self._boundary(PacedBy.LOADER)

    def _watch_optimizers(self) -> None:
        original = Optimizer.__init__

        @functools.wraps(original)
        def __init__(optimizer: Optimizer, *arguments: Any, **options: Any) -> None:
            self._breaker.run(self._optimizer_made, optimizer)
            original(optimizer, *arguments, **options)

        Optimizer.__init__ = __init__  # type: ignore[method-assign, assignment]

    def _optimizer_made(self, optimizer: Optimizer) -> None:
        optimizers.add(optimizer)
        self._has_optimizer = True
        self._calls.stop()

    def _optimizer_stepped(self, optimizer: Optimizer) -> None:
        optimizers.stepped(optimizer)
        if self._may_mark(PacedBy.OPTIMIZER) and self._optimizers.marks(optimizer):
            self._boundary(PacedBy.OPTIMIZER)

    def _module_returned(self, module: object) -> None:
        if get_worker_info() is not None or loader_waits.is_one_here():  # A module that makes samples is no step.
            return
        if threading.get_ident() == self._thread:
            self._calls_in_batch += 1
        if not self._caller.is_here():  # A profiler belongs to one thread: of several that serve requests one counts.
            return
        if self._may_mark(PacedBy.MODULE) and not self._is_in_batch() and self._modules.marks(module):
            self._boundary(PacedBy.MODULE)

    def _is_in_batch(self) -> bool:
        """Whether this thread is in a loop over a DataLoader."""
        iterator = self._iterator() if self._iterator is not None else None
        return (
            iterator is not None
            and threading.get_ident() == self._thread
            and self._calls_in_batch < _MAX_CALLS_IN_BATCH
        )

    def _may_mark(self, by: PacedBy) -> bool:
        return self._by is None or not self._by.is_better_than(by)

    def _boundary(self, by: PacedBy) -> None:
        if by is not self._by:
            self._by = by
            if by is not PacedBy.MODULE:
                self._calls.stop()
        self._on_boundary(by)


class OneThread:
    """Selects the first thread that calls, until it has ended or has not called for long."""

    def __init__(self) -> None:
        self._thread: weakref.ref[threading.Thread] | None = None
        self._came = 0.0

    def is_here(self) -> bool:
        """Whether the calling thread is the selected one."""
        one, here, now = (
            self._thread() if self._thread is not None else None,
            threading.current_thread(),
            time.monotonic(),
        )
        if one is not here and one is not None and one.is_alive() and now - self._came < _MAX_ABSENCE_S:
            return False
        if one is not here:
            self._thread = weakref.ref(here)
        self._came = now
        return True


class _First:
    """Selects one of several objects of a kind to mark the steps: the first one, until it is freed or stops.

    With `begins`, its first mark starts a step and ends none.
    """

    def __init__(self, *, begins: bool) -> None:
        self._begins = begins
        self._one: weakref.ref[object] | None = None
        self._others = 0

    def marks(self, thing: object) -> bool:
        """Whether a mark of `thing` ends a step now."""
        one = self._one() if self._one is not None else None
        self._others = 0 if one is thing else self._others + 1
        if one is None or self._others > _MAX_MARKS_OF_OTHERS:
            self._one, self._others = weakref.ref(thing), 0
            return not self._begins
        return one is thing
