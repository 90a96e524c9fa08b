"""What benchmarks share that carry out what-ifs: a job on hosts of the test bed, the same hosts changed, and recordings."""

import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import esprof
from benchmarks.testbed.network import bits_per_s

STEPS = 24
"""Steps that a recording holds."""
ALL_STEPS = STEPS + 9
"""Steps that a job makes for that: the first few are left out, and the last few may follow a probe."""

_TERM = re.compile(r"(?:rank(?P<rank>\d+)\.)?(?P<name>cpu|network)=(?P<factor>\d+(?:\.\d+)?)x")


@dataclass(frozen=True)
class Setting:
    """Hosts, and the job that runs on them: rank N on host N. `cpu` in cores, `rate` as `tc` writes it or "none"."""

    argv: tuple[str, ...]
    cpu: tuple[float, ...] = (0.5, 0.5)
    rate: tuple[str, ...] = ("200mbit", "200mbit")


def changed(setting: Setting, spec: str) -> Setting:
    """The setting in which a what-if of the terms `cpu` and `network` has come true. Raises ValueError for others."""
    for term in spec.split(","):
        match = _TERM.fullmatch(term)
        if not match or (match["rank"] and match["name"] == "network"):
            raise ValueError(f"{term} cannot be carried out by quotas and link rates")
        factor = float(match["factor"])
        if match["name"] == "network":
            rate = tuple(f"{bits_per_s(rate) * factor / 1e6:g}mbit" for rate in setting.rate)
            setting = replace(setting, rate=rate)
        else:
            ranks = {int(match["rank"])} if match["rank"] else range(len(setting.cpu))
            cpu = tuple(round(cores * factor, 4) if rank in ranks else cores for rank, cores in enumerate(setting.cpu))
            setting = replace(setting, cpu=cpu)
    return setting


def record(setting: Setting, out: Path, probe_s: float = 0, steps: int = STEPS) -> esprof.Run:
    """The recording of so many steps of a setting in `out`, which is made unless it is there already; probed for `probe_s`
    seconds."""
    if not (out / "run.json").exists():
        bed = ["-m", "benchmarks.testbed", "torchrun", "--cpu", *map(str, setting.cpu), "--rate", *setting.rate, "--"]
        probing = ["--probe", str(probe_s)] if probe_s else []
        window = f"--skip 3 --warmup 2 --steps {steps} --stack-steps 0 --shapes".split()
        options = ["-q", "-f", "-o", str(out), *window, *probing]
        command = [sys.executable, "-m", "esprof", "record", *options, "--", sys.executable, *bed, *setting.argv]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} ended with {done.returncode}\n{done.stderr}")
    return esprof.load(out)


def noise_pct(repeats: Sequence[float]) -> float:
    """How far repeats of one measurement lie apart, per cent of the least."""
    return 100 * (max(repeats) / min(repeats) - 1)


def slug(text: str) -> str:
    """`text` as a file's name."""
    return re.sub(r"\W+", "-", text)
