"""What a bed really delivers: link rates and CPU shares beside what was asked, and how much a job's step time wavers."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.testbed import load
from benchmarks.testbed.bed import MOST_OF_THE_CORES, Bed, hosts
from benchmarks.testbed.network import bits_per_s

LINK_RATES = ("100mbit", "200mbit", "500mbit", "1gbit")
CPU_SHARES = ((0.125, 0.375), (0.5, 0.5), (0.25, 0.25, 0.25, 0.25))
"""Shares of each host in what the hosts may have together: two unlike, two like, and four that share two cores."""
JOB_RATES = ("200mbit", "1gbit")
JOB_SHARES = (0.375, 0.1875)
REPEATS = 2
UNEVEN_STEPS = 8
"""Steps in which a job settles: its first connections, buckets and buffers."""

Figure = dict[str, Any]


def probe(seconds: float = 3.0, steps: int = 60) -> Iterator[Figure]:
    """Measure links and CPU shares for `seconds` each, and the reference job for `steps` steps a run."""
    # Nothing that is measured here has more than one busy thread a host: two cores are enough for two hosts.
    most = MOST_OF_THE_CORES * min(2, len(os.sched_getaffinity(0)))
    with hosts(cpu=[most / 2] * 2, rate=[None] * 2) as bed:
        for rate in LINK_RATES:
            yield from link(bed, rate, seconds)
    for shares in CPU_SHARES:
        yield from cpu([round(share * most, 2) for share in shares], seconds)
    yield from noise([round(share * most, 2) for share in JOB_SHARES], steps)


def link(bed: Bed, rate: str, seconds: float) -> Iterator[Figure]:
    """The rate from host 0 to host 1, in one long stream and in single messages, with both links at `rate`."""
    for host in (0, 1):
        bed.set_rate(host, rate)
    asked = bits_per_s(rate)
    messages = max(8, round(seconds * asked / 8 / load.MESSAGE))
    for pattern, count, pause in (("stream", messages, 0.0), ("1 MB messages", 30, 0.05)):
        got = transfer(bed, count, pause)
        yield _against_asked("link_rate", got / 1e6, asked / 1e6, "Mbit/s", {"pattern": pattern})


def transfer(bed: Bed, messages: int, pause: float) -> float:
    """Send 1 MB messages from host 0 to host 1, in bit/s; without a pause, one stream."""
    receiver = bed.run(1, load_command("receive"))
    sender = bed.run(0, load_command("send", bed.hosts[1].address, messages, pause), stdout=subprocess.PIPE)
    rate: float = _answer(sender)
    receiver.wait()
    return rate


def cpu(shares: Sequence[float], seconds: float) -> Iterator[Figure]:
    """The cores that a spinning process gets on each of several hosts at once."""
    with hosts(cpu=shares, rate=[None] * len(shares)) as bed:
        spinning = [bed.run(host, load_command("spin", seconds), stdout=subprocess.PIPE) for host in bed.hosts]
        for share, process in zip(shares, spinning, strict=True):
            yield _against_asked("cpu_share", _answer(process), share, "cores", {"beside": list(shares)})


def noise(shares: Sequence[float], steps: int) -> Iterator[Figure]:
    """How far the median step times of the reference job lie apart between repeats, which alternate with the rates."""
    medians: dict[str, list[float]] = {rate: [] for rate in JOB_RATES}
    with tempfile.TemporaryDirectory() as folder, hosts(cpu=shares, rate=[None] * len(shares)) as bed:
        for _ in range(REPEATS):
            for rate in JOB_RATES:
                for host in bed.hosts:
                    bed.set_rate(host, rate)
                medians[rate].append(median(step_times(bed, Path(folder) / "files", steps)))
    for rate, found in medians.items():
        context = {"rate": rate, "cpu": list(shares), "job": "gpt", "steps": steps, "medians_ms": _rounded(found)}
        yield {"name": "step_time", "value": round(median(found), 2), "unit": "ms", "context": context}
        apart = 100 * (max(found) - min(found)) / median(found)
        yield {"name": "step_time_noise", "value": round(apart, 2), "unit": "%", "context": context}


def step_times(bed: Bed, files: Path, steps: int) -> list[float]:
    """Step times in ms of the reference job, without those before it has settled."""
    arguments = ["--steps", str(steps + UNEVEN_STEPS), "--files", str(files)]
    with tempfile.TemporaryFile() as output:
        codes = bed.torchrun(["-m", "benchmarks.jobs.gpt", *arguments], stdout=output).wait()
        if any(codes):
            raise RuntimeError(f"the reference job ended with {codes}")
        output.seek(0)
        times: list[float] = json.loads(output.read())["step_ms"]
    return times[UNEVEN_STEPS:]


def load_command(*words: object) -> list[str]:
    return [sys.executable, load.__file__, *map(str, words)]


def _answer(process: subprocess.Popen[bytes]) -> Any:
    """What a process printed, which is one JSON value. Raises CalledProcessError where it failed."""
    output, _ = process.communicate()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, process.args)
    return json.loads(output)


def _against_asked(name: str, got: float, asked: float, unit: str, context: dict[str, Any]) -> Figure:
    error = round(100 * (got / asked - 1), 2)
    return {
        "name": name,
        "value": round(got, 4),
        "unit": unit,
        "context": {"asked": asked, "error_pct": error} | context,
    }


def _rounded(values: Sequence[float]) -> list[float]:
    return [round(value, 2) for value in values]
