"""Queueing by gang size and locality, and GPU time by size and final state.

After Jeon et al., Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads, ATC 2019. Most jobs that
fail do so by an error of their user; therefore GPU time counts, not jobs.
"""

from collections.abc import Iterator, Mapping

import numpy as np

from esprof.analyzers.jobs.answer import Gang, JobsAnswer, JobShare, Part, Retries, Servers, Waits
from esprof.analyzers.jobs.gang_size import Undecidable, advise_size
from esprof.analyzers.jobs.gangs import GANGS, SERVERS, gang_of, servers_of
from esprof.analyzers.jobs.log import S_PER_DAY, S_PER_HOUR, STATES, JobLog, State


def study(log: JobLog, sizes: Mapping[int, float] | None = None) -> JobsAnswer:
    """What the log shows, and which of `sizes` (GPUs: hours of training) to ask for."""
    study_of = _Study(log)
    declined = study_of.declined()
    advice = None
    if sizes:
        try:
            advice = advise_size(log, study_of.wait_s, sizes)
        except Undecidable as reason:
            declined["gang_size"] = str(reason)
    waits = study_of.wait_s[study_of.waited]
    return JobsAnswer(
        format=log.format,
        jobs=study_of.all_jobs,
        gpu_jobs=len(study_of.gang_of_job),
        attempts=int((log.is_gpu_job & ~np.isnan(log.run_s)).sum()),
        days=study_of.days,
        gpu_hours=float(study_of.gpu_h.sum()),
        mean_wait_s=float(waits.mean()) if len(waits) else None,
        median_wait_s=float(np.median(waits)) if len(waits) else None,
        queueing=tuple(study_of.queueing()),
        locality=() if "locality" in declined else tuple(study_of.locality()),
        states=() if "states" in declined else tuple(study_of.states()),
        gangs=tuple(study_of.gangs()),
        retries=None if "retries" in declined else study_of.retries(),
        advice=advice,
        declined=declined,
        notes=(*log.notes, *study_of.notes()),
    )


class _Study:
    """The attempts of a log, and its jobs with GPUs."""

    def __init__(self, log: JobLog) -> None:
        self.log = log
        # Log clocks are not exact: an attempt that starts before its submission says nothing about the queue.
        self.wait_s = np.where(log.is_gpu_job, log.started_s - log.queued_s, np.nan)
        self.is_early = self.wait_s < 0
        self.wait_s[self.is_early] = np.nan
        self.waited = ~np.isnan(self.wait_s)
        self.gpu_h = np.where(log.is_gpu_job, np.nan_to_num(np.maximum(log.run_s, 0) * log.gpus), 0) / S_PER_HOUR
        self.gang = gang_of(log.gpus)

        last = np.flatnonzero(log.is_last)
        self.all_jobs = len(last)
        asked = np.maximum.reduceat(np.nan_to_num(log.gpus), np.append(0, last[:-1] + 1))
        has_gpus = asked > 0
        self.gang_of_job = gang_of(asked[has_gpus])
        self.state_of_job = log.state[last][has_gpus]
        self.gpu_h_of_job = np.bincount(log.job, self.gpu_h, minlength=self.all_jobs)[has_gpus]

    @property
    def days(self) -> float:
        known = self.log.queued_s[~np.isnan(self.log.queued_s)]
        return float(np.ptp(known)) / S_PER_DAY if len(known) else 0.0

    def declined(self) -> dict[Part, str]:
        """What the log lacks the evidence for, with the reason."""
        found: dict[Part, str] = {}
        if "start" in self.log.lacks:
            found["queueing"] = found["locality"] = "the log has no column of start times"
        elif not self.waited.any():
            found["queueing"] = found["locality"] = "no job with GPUs has both a submission and a start"
        if "servers" in self.log.lacks:
            found["locality"] = "the log does not record the servers of a job"
        if "state" in self.log.lacks:
            found["states"] = "the log does not record the final state of a job"
        if "attempts" in self.log.lacks:
            found["retries"] = "the log records one attempt of each job"
        if not self.gpu_h.any():
            found["gpu_time"] = "no job with GPUs has a duration"
        return found

    def notes(self) -> Iterator[str]:
        if early := int(self.is_early.sum()):
            yield f"attempts that start before their submission, left out of the waits: {early:,}"
        asked = self.log.is_gpu_job
        if "start" not in self.log.lacks and (never := int((asked & np.isnan(self.log.started_s)).sum())):
            yield f"jobs with GPUs that have no start, and so no wait: {never:,}"
        if unended := int((asked & np.isnan(self.log.run_s) & ~np.isnan(self.log.started_s)).sum()):
            yield f"attempts that have no end, and so no GPU time: {unended:,}"

    def queueing(self) -> Iterator[Waits]:
        for at, gang in enumerate(GANGS):
            if (of := self.waited & (self.gang == at)).any():
                yield _waits(gang, None, self.wait_s[of])

    def locality(self) -> Iterator[Waits]:
        servers = servers_of(self.log.servers)
        known = self.waited & ~np.isnan(self.log.servers)
        for at, gang in enumerate(GANGS):
            for count, name in enumerate(SERVERS):
                if (of := known & (self.gang == at) & (servers == count)).any():
                    yield _waits(gang, name, self.wait_s[of])

    def states(self) -> Iterator[JobShare]:
        for state in STATES:
            yield from self._share(state, self.state_of_job == state)

    def gangs(self) -> Iterator[JobShare]:
        for at, gang in enumerate(GANGS):
            yield from self._share(gang, self.gang_of_job == at)

    def retries(self) -> Retries:
        again = ~self.log.is_last
        hours = float(self.gpu_h[again].sum())
        return Retries(attempts=int(again.sum()), gpu_hours=hours, gpu_time_share=_part(hours, self.gpu_h))

    def _share(self, name: Gang | State, of: np.ndarray) -> Iterator[JobShare]:
        """The jobs of the mask `of`, if there are any."""
        if jobs := int(of.sum()):
            hours = float(self.gpu_h_of_job[of].sum())
            yield JobShare(
                of=name,
                jobs=jobs,
                jobs_share=jobs / len(of),
                gpu_hours=hours,
                gpu_time_share=_part(hours, self.gpu_h_of_job),
            )


def _part(hours: float, of: np.ndarray) -> float | None:
    whole = float(of.sum())
    return hours / whole if whole else None


def _waits(gang: Gang, servers: Servers | None, wait_s: np.ndarray) -> Waits:
    return Waits(
        gang=gang,
        servers=servers,
        attempts=len(wait_s),
        mean_s=float(wait_s.mean()),
        median_s=float(np.median(wait_s)),
        p90_s=float(np.quantile(wait_s, 0.9)),
    )
