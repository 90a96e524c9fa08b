"""A heterogeneous cluster on one Linux machine: hosts with their own CPU rate and their own link, for real gloo jobs.

A host is a network namespace on a bridge and a cgroup of the cpu controller, under one name. It needs root.

    with hosts(cpu=[0.6, 0.3], rate=["200mbit", None]) as bed:
        job = bed.torchrun(["-m", "benchmarks.jobs.gpt", "--steps", "20", "--files", "/tmp/gpt"])
        bed.set_rate(1, "1gbit")
        codes = job.wait()
"""

from benchmarks.testbed.bed import Bed, Host, hosts
from benchmarks.testbed.job import Job
from benchmarks.testbed.system import BedUnavailable

__all__ = ["Bed", "BedUnavailable", "Host", "Job", "hosts"]
