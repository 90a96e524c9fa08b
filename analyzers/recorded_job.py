"""Data of a Run that analyses share without a replay: its steps and samples, each read once."""

from functools import cached_property

from esprof.analyzers.samples.function_time import FunctionTimes
from esprof.analyzers.samples.garbage import Collections, collections
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.analyzers.steps.saves import Saves, saves_of
from esprof.analyzers.steps.step_groups import SlowGroup, slow_groups
from esprof.run.run import Run


class RecordedJob:
    """A Run with its steps and samples. Made once at the start of an analysis and passed on like `Replayed`."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.steps = JobSteps(run)
        self.samples = JobSamples(self.steps)

    @cached_property
    def slow_groups(self) -> list[SlowGroup]:
        """Groups of slow steps among the steps without profiler."""
        return slow_groups(self.steps)

    @cached_property
    def saves(self) -> Saves | None:
        """The saves of the job; None if none was recorded."""
        return saves_of(self.steps)

    @cached_property
    def function_times(self) -> FunctionTimes:
        """Times of functions of the job's own code in the steps without profiler."""
        return FunctionTimes(self.samples)

    @cached_property
    def collections(self) -> Collections | None:
        """Time of garbage collections in the steps without profiler; None if unknown."""
        return collections(self.samples)
