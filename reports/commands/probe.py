"""`esprof probe`."""

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import click
import msgspec

from esprof.analyzers.views.probed import probed
from esprof.core.credentials import without_secrets
from esprof.core.errors import InputError, UsageError
from esprof.core.output import claim
from esprof.core.text import printable
from esprof.reports.commands.common import answer, job_arguments, json_option, refuse_stdout, say, staging_folder
from esprof.reports.commands.run_job import record, say_recorded
from esprof.reports.commands.values import Duration
from esprof.reports.terminal.probed import draw_probed
from esprof.run import files
from esprof.run.collect.own_steps import own_steps
from esprof.run.directory import read_probes, write_probes
from esprof.run.probes import Probes, Sweep, VariedStep, put_together
from esprof.run.raw.settings import Settings

_RECORDED = Settings(shapes=True, ends_early=True)
"""A short recording: the job's own step is one of the measurements."""


@dataclass(frozen=True)
class Variation:
    """An option or environment variable of the command, and the values to try."""

    name: str
    values: tuple[str, ...]

    @classmethod
    def read(cls, text: str) -> "Variation":
        """From `--batch-size=16,32` or `BATCH_SIZE=16,32`. Raises UsageError."""
        name, equals, values = text.partition("=")
        if not equals or not re.fullmatch(r"-{1,2}\w[\w-]*|[A-Za-z_]\w*", name) or not all(values.split(",")):
            raise UsageError(
                f"--vary {text!r} is not an option or variable with values",
                remedy="Write --vary=--batch-size=16,32,64, or --vary BATCH_SIZE=16,32,64 for a variable.",
            )
        return cls(name, tuple(values.split(",")))

    def settings(self, job: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
        """(setting, command with it) for each value."""
        for value in self.values:
            if not self.name.startswith("-"):
                yield f"{self.name}={value}", ["env", f"{self.name}={value}", *job]
            else:
                yield f"{self.name} {value}", _with_option(job, self.name, value)


@click.command("probe", context_settings={"allow_interspersed_args": False})
@job_arguments("Run directory for the results; created if missing.")
@click.option("-f", "--force", is_flag=True, help="Repeat benchmarks whose results RUN already has.")
@click.option(
    "--budget",
    metavar="TIME",
    type=Duration(),
    default="120s",
    show_default=True,
    help="Time for the benchmarks. The first steps of the job do not count.",
)
@click.option(
    "--vary",
    metavar="NAME=V1,V2,…",
    help=(
        "Start CMD once for each value, and run only its first steps. NAME is an option of CMD "
        "(--vary=--batch-size=16,32) or an environment variable (--vary OMP_NUM_THREADS=1,2)."
    ),
)
@click.option("--show", metavar="RUN", type=click.Path(path_type=Path), help="Show the results in RUN; give no CMD.")
@click.option("-q", "--quiet", is_flag=True, help="Print only errors and warnings.")
@json_option
def command(
    job: tuple[str, ...],
    output: Path,
    force: bool,
    budget: float,
    vary: str | None,
    show: Path | None,
    quiet: bool,
    as_json: bool,
) -> int:
    """Benchmark a job's devices, links and storage.

    CMD runs unchanged for about 20 steps. Then esprof benchmarks devices, links, gradient compression and storage in
    the processes of the job, over their links, and ends the job. The results are stored in RUN; `esprof replay` and
    `esprof recommend` use them. Run the same command again to continue an interrupted probe.

    \b
    esprof probe -o RUN -- torchrun --nproc-per-node 2 train.py
    esprof probe --show RUN
    """
    if show is not None:
        if job:
            raise UsageError("--show starts nothing: give no command")
        return _show(show, as_json=as_json)
    if not job:
        raise UsageError("no command to probe", remedy="esprof probe -o RUN -- torchrun … train.py")
    refuse_stdout(output)
    variation = Variation.read(vary) if vary else None
    earlier = None if force else _earlier(output, job)
    exit_code = _probe(job, output, budget, earlier, quiet=quiet)
    if variation is not None and exit_code == 0:
        exit_code = _vary(job, output, variation, quiet=quiet)
    if exit_code == 0 and as_json:
        return _show(output, as_json=True)
    if exit_code == 0 and not quiet:
        say(f"next: esprof probe --show {shlex.quote(str(output))}")
    return exit_code


def _earlier(output: Path, job: Sequence[str]) -> Probes | None:
    """The results of an interrupted probe in `output`. Raises an error if that probe is complete or of another
    command."""
    if not output.exists():
        return None
    if not files.is_complete(output):
        claim(output, force=False)
    found = read_probes(output)
    if found is None:
        return None
    if found.command != without_secrets(job):
        raise UsageError(
            f"{output} holds the probe of another command: {shlex.join(found.command)}",
            remedy="Name another RUN with -o, or repeat the probe with --force.",
        )
    if found.whole:
        raise UsageError(
            f"{output} was probed already",
            remedy=f"Show it with esprof probe --show {output}, or repeat it with --force.",
        )
    return found


def _probe(job: Sequence[str], output: Path, budget_s: float, earlier: Probes | None, *, quiet: bool) -> int:
    """Record and benchmark in a temporary folder, then move the results to `output`. Returns the command's exit
    code."""
    done = earlier.stages if earlier is not None else ()
    settings = replace(_RECORDED, probe_s=budget_s, probed=done, quiet=quiet)
    with staging_folder(output) as folder:
        made = record(job, folder / "run", settings, force=False, beginning=None if quiet else _beginning(settings))
        if made.run is None and made.exit_code:
            say_recorded(made)
            return made.exit_code
        if made.run is None or made.run.probes is None:
            raise InputError(
                f"the job ended with exit code {made.exit_code} before step {settings.probe_at}, at which the probe starts",
                remedy="Let the job run more steps; the probe ends it.",
            )
        probes = _with_earlier(made.run.probes, earlier, tuple(own_steps(made.run)))
        if not files.is_complete(output):
            say_recorded(made, quiet=quiet)
            (folder / "run").rename(output)
        write_probes(output, probes)
    for one in probes.left_out if not quiet else ():
        say(f"skipped: {printable(one.what)}: {printable(one.reason, 500)}")
    if not probes.whole:
        say(f"the probe was interrupted after {probes.took_s:.0f} s; run the same command to continue it")
    return made.exit_code


def _vary(job: Sequence[str], output: Path, variation: Variation, *, quiet: bool) -> int:
    """Run the job's first steps with each setting, and add their times to the probes of `output`."""
    for setting, changed in variation.settings(job):
        with staging_folder(output) as folder:
            made = record(
                changed, folder / "run", _RECORDED, force=False, beginning=None if quiet else f"with {setting}"
            )
            if made.run is None or made.exit_code:
                say_recorded(made)
                return made.exit_code or 1
            probes = read_probes(output)
            assert probes is not None, "written by _probe"
            others = tuple(step for step in probes.steps if step.setting != setting)
            write_probes(output, msgspec.structs.replace(probes, steps=(*others, *own_steps(made.run, setting))))
    return 0


def _with_earlier(probes: Probes, earlier: Probes | None, steps: tuple[VariedStep, ...]) -> Probes:
    probes = msgspec.structs.replace(probes, steps=steps)
    if earlier is None:
        return probes
    unrepeated = [sweep for sweep in earlier.sweeps if not any(_is_same(sweep, other) for other in probes.sweeps)]
    return msgspec.structs.replace(
        probes,
        took_s=earlier.took_s + probes.took_s,
        stages=(*earlier.stages, *probes.stages),
        sweeps=tuple(put_together([*unrepeated, *probes.sweeps])),
        left_out=tuple(dict.fromkeys([*earlier.left_out, *probes.left_out])),
        steps=(*(step for step in earlier.steps if step.setting), *steps),
    )


def _is_same(one: Sweep, other: Sweep) -> bool:
    """Whether two sweeps measured the same benchmark."""
    return msgspec.structs.replace(one, points=()) == msgspec.structs.replace(other, points=())


def _beginning(settings: Settings) -> str:
    rest = f", without {', '.join(settings.probed)}, which is done" if settings.probed else ""
    return f"probing for {settings.probe_s:g} s after step {settings.probe_at - 1} of the job{rest}"


def _with_option(job: Sequence[str], name: str, value: str) -> list[str]:
    """`job` with the option set: in its position, or at the end."""
    words = list(job)
    for position, word in enumerate(words):
        if word == name and position + 1 < len(words):
            return [*words[: position + 1], value, *words[position + 2 :]]
        if word.startswith(f"{name}="):
            return [*words[:position], f"{name}={value}", *words[position + 1 :]]
    return [*words, name, value]


def _show(path: Path, *, as_json: bool) -> int:
    probes = read_probes(path)
    if probes is None:
        raise InputError("holds no probe", path=path, remedy=f"esprof probe -o {shlex.quote(str(path))} -- CMD…")
    answer(probed(probes), draw_probed, as_json=as_json)
    return 0
