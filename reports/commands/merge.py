"""`esprof merge`."""

from pathlib import Path

import click

from esprof.core import readable
from esprof.core.text import printable
from esprof.core.types import us
from esprof.reports.commands.common import json_option, refuse_stdout, say, status
from esprof.reports.commands.written import answer_written
from esprof.run.merge import merge
from esprof.run.run import RankMeta, Run


@click.command("merge")
@click.argument("sources", metavar="RUN…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option(
    "-o",
    "--output",
    metavar="MERGED",
    type=click.Path(path_type=Path),
    required=True,
    help="Run directory to write.",
)
@click.option("-f", "--force", is_flag=True, help="Overwrite MERGED if it exists and is a Run directory.")
@json_option
def command(sources: tuple[Path, ...], output: Path, force: bool, as_json: bool) -> None:
    """Merge the runs that each host of a job recorded.

    Each RUN is the Run directory of one host (under srun or mpirun: of one rank), or a folder of such directories.
    All times are converted to the clock of rank 0, by the clock offsets measured while the job ran.

    With --json, esprof prints the path and size of the merged run, and its warnings.

    \b
    esprof merge RUN -o MERGED
    esprof merge host0/RUN host1/RUN -o MERGED
    """
    refuse_stdout(output)
    with status("Merging the runs"):
        run = merge(sources, output, force=force)
    for warning in run.warnings:
        say(f"warning: {printable(warning.message, 2_000)}")
    for host, ranks in _by_host(run).items():
        say(_clock(host, ranks))
    say(f"merged {readable.ranks(run.ranks)} of {run.world_size} into {output}; next: esprof diagnose {output}")
    if as_json:
        answer_written("run", output, run, run.warnings)


def _by_host(run: Run) -> dict[str, list[RankMeta]]:
    hosts: dict[str, list[RankMeta]] = {}
    for rank in run.meta.ranks:
        hosts.setdefault(rank.host or f"rank {rank.rank}", []).append(rank)
    return hosts


def _clock(host: str, ranks: list[RankMeta]) -> str:
    where = f"{readable.ranks(rank.rank for rank in ranks)} on {printable(host)}"
    known = [rank for rank in ranks if rank.clock_offset_ns is not None and rank.clock_residual_ns is not None]
    if not known:
        return f"{where}: clock unknown"
    offset, error = known[0].clock_offset_ns or 0, known[0].clock_residual_ns or 0
    drift = known[0].clock_drift_ppm
    drifts = f", drift {drift:.1f} ppm" if drift else ""
    return f"{where}: clock offset {us(offset) / 1000:+.3f} ms from rank 0, within {us(error):.0f} µs{drifts}"
