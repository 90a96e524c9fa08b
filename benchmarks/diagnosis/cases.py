"""What a job, a fault in it and a case of the two are."""

import importlib.util
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.testbed.network import bits_per_s

NONE = "none"
"""What the jobs call it that no fault is planted."""

INPUT = ("ESP1",)
"""What names a loader that is slow on all ranks, with whatever cause."""

INPUT_OF_ONE = (*INPUT, "ESP206")
SLOW_RANK = ("ESP201", "ESP202", "ESP203")
SAVE = ("ESP601",)

_SCRIPTS = Path(__file__).parent / "jobs"


@dataclass(frozen=True)
class Hosts:
    """Hosts of the test bed: `cpu` in cores, `rate` as `tc` writes it or "none"."""

    cpu: tuple[float, ...]
    rate: tuple[str, ...]


@dataclass(frozen=True)
class Fault:
    """A fault that can be planted in a job.

    Its script plants it when called with `--fault NAME --rank R --strength S`, in lines between `# FAULT NAME` and
    `# END FAULT`. What `quota` and `link` name is done to the job's hosts instead.
    """

    name: str
    accepted: tuple[str, ...]
    """Ids of findings that name this cause; the beginning of an id, such as ESP3, stands for a family."""
    strength: tuple[float, float]
    """Least and most; what it means is the script's affair. Of quotas and links: which share is left."""
    second_best: tuple[str, ...] = ()
    """Ids that lead to the fault without naming it; they are counted apart."""
    one_rank: bool = False
    """Whether one rank, drawn by chance, has the fault."""
    placed: bool = False
    """Whether the fault is code that runs in the training process, so that a finding can name its line."""
    module: str | None = None
    """Module beside the job's script that holds the fault; None where the script itself does."""
    quota: bool = False
    link: bool = False

    @property
    def is_done_to_hosts(self) -> bool:
        return self.quota or self.link


@dataclass(frozen=True)
class Job:
    """A script and how it is started. `ranks` workers on this machine, or one on each of `hosts`."""

    name: str
    script: Path
    faults: tuple[Fault, ...]
    ranks: int = 2
    hosts: Hosts | None = None
    starts_itself: bool = False
    """Whether the script starts its own ranks."""
    needs: tuple[str, ...] = ()
    """Modules that the project does not install; without them the job is skipped."""
    true_without_fault: tuple[str, ...] = ()
    """Ids of findings that are no mistake on the job without a fault."""

    @property
    def can_part(self) -> bool:
        """Whether each of its ranks can train by itself, beside the others."""
        return self.ranks > 1 and self.hosts is None and not self.starts_itself

    def source_of(self, fault: Fault) -> Path:
        """The file that holds the fault."""
        return self.script.with_stem(fault.module) if fault.module else self.script

    def missing(self) -> list[str]:
        return [module for module in self.needs if importlib.util.find_spec(module) is None]


@dataclass(frozen=True)
class Case:
    """A job with one of its faults, as strong and on the rank that the seed says; `fault` is None in a control.

    Where the ranks are `apart`, each trains by itself beside the others: what that lacks of the control's time is what
    transfers cost, and what waiting for one another does.
    """

    job: Job
    fault: Fault | None
    seed: int
    rank: int = 0
    strength: float = 0.0
    apart: bool = False

    @property
    def name(self) -> str:
        return f"{self.job.name} {'apart' if self.apart else self.planted}"

    @property
    def planted(self) -> str:
        return self.fault.name if self.fault else NONE

    @property
    def is_control(self) -> bool:
        return self.fault is None and not self.apart

    @property
    def arguments(self) -> tuple[str, ...]:
        """What the script is told of its fault."""
        in_script = self.fault is not None and not self.fault.is_done_to_hosts
        fault = ("--fault", self.planted if in_script else NONE)
        return (*fault, "--rank", str(self.rank), "--strength", f"{self.strength:g}", "--seed", str(self.seed))

    @property
    def hosts(self) -> Hosts | None:
        """The hosts with what the fault does to them: to the rank's own, or to all of them."""
        hosts = self.job.hosts
        if hosts is None or self.fault is None:
            return hosts
        hit = {self.rank} if self.fault.one_rank else set(range(len(hosts.cpu)))
        cpu, rate = hosts.cpu, hosts.rate
        if self.fault.quota:
            cpu = tuple(round(cores * self.strength, 3) if host in hit else cores for host, cores in enumerate(cpu))
        if self.fault.link:
            slower = [f"{bits_per_s(link) * self.strength / 1e6:g}mbit" for link in rate]
            rate = tuple(slower[host] if host in hit else link for host, link in enumerate(rate))
        return Hosts(cpu, rate)


def script(name: str) -> Path:
    """A script of a set, by `SET/NAME`."""
    return _SCRIPTS / f"{name}.py"


def draw(job: Job, fault: Fault, seed: int) -> Case:
    """The case of a seed: the same wherever the project lies, and another one for each job, fault and seed."""
    chance = random.Random(f"{job.script.parent.name}/{job.script.name} {fault.name} {seed}")
    ranks = len(job.hosts.cpu) if job.hosts else job.ranks
    strength = chance.uniform(*fault.strength)
    return Case(job, fault, seed, rank=chance.randrange(ranks), strength=float(f"{strength:.3g}"))


def cases(jobs: Sequence[Job], seeds: Sequence[int]) -> Iterator[Case]:
    """All cases of the jobs; each job's control comes first."""
    for job in jobs:
        for seed in seeds:
            yield Case(job, None, seed)
            if job.can_part:
                yield Case(job, None, seed, apart=True)
            for fault in job.faults:
                yield draw(job, fault, seed)
