"""What every analysis of a Run shares that needs no replay: its steps and its samples, each looked at once."""

from functools import cached_property

from esprof.analyzers.samples.function_time import FunctionTimes
from esprof.analyzers.samples.garbage import Collections, collections
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.analyzers.steps.step_groups import SlowGroup, slow_groups
from esprof.run.run import Run


class RecordedJob:
    """A Run with its steps and samples. Made once where an analysis begins, and handed on as `Replayed` is."""

    def __init__(self, run: Run) -> None:
        self.run = run
        self.steps = JobSteps(run)
        self.samples = JobSamples(self.steps)

    @cached_property
    def slow_groups(self) -> list[SlowGroup]:
        """The groups of slow steps, among those that ran without the profiler."""
        return slow_groups(self.steps)

    @cached_property
    def function_times(self) -> FunctionTimes:
        """How long functions of the job's own code take in the steps without profiler."""
        return FunctionTimes(self.samples)

    @cached_property
    def collections(self) -> Collections | None:
        """What garbage collections take of the steps without profiler; None where nothing tells."""
        return collections(self.samples)
