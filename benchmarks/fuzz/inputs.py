"""Inputs of targets that take more than a call to write or to read."""

import json
import os
import re
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from esprof import load
from esprof.analyzers.advisors.cluster.questions.ask import ask
from esprof.reports.pyproject import read_ignores
from tests.cases import kineto

_PAGES = Path(__file__).parents[2] / "docs" / "how-to"


def written(**contents: Any) -> Callable[[Path], None]:
    """Writes these files; `__` in a name stands for a dot. Values other than texts and bytes are written as JSON."""

    def make(folder: Path) -> None:
        for name, content in contents.items():
            raw = content.encode() if isinstance(content, str) else content
            (folder / name.replace("__", ".")).write_bytes(raw if isinstance(raw, bytes) else json.dumps(raw).encode())

    return make


def example(page: str, after: str, name: str) -> Callable[[Path], None]:
    """Writes the first example of a how-to page after this text."""
    text = (_PAGES / page).read_text()
    found = re.search(r"```(?:yaml|json)\n(.*?)```", text[text.index(after) :], re.DOTALL)
    assert found is not None, after
    return written(**{name.replace(".", "__"): found[1]})


def read_whole(folder: Path) -> None:
    """Read all that a Run holds."""
    run = load(folder / "run")
    for rank in run.ranks:
        for table in (
            run.events,
            run.steps,
            run.stages,
            run.accesses,
            run.memory,
            run.allocations,
            run.samples,
            run.stacks,
        ):
            table(rank)
        run.flight(rank)
    repr(run)


def read_events(name: str) -> Callable[[Path], None]:
    def read(folder: Path) -> None:
        run = load(folder / name)
        for rank in run.ranks:
            run.events(rank)

    return read


def read_joined(folder: Path) -> None:
    run = load([folder / "et.json", folder / "rank0.json"])
    for rank in run.ranks:
        run.events(rank)


def archives(folder: Path) -> None:
    raw = kineto._ENCODER.encode(kineto.job(0, world=1))
    (folder / "rank0.json").write_bytes(raw)
    with tarfile.open(folder / "traces.tgz", "w:gz") as packed:
        packed.add(folder / "rank0.json", "rank0.json")
    with zipfile.ZipFile(folder / "traces.zip", "w") as zipped:
        zipped.write(folder / "rank0.json", "rank0.json")


def read_archives(folder: Path) -> None:
    load(folder / "traces.zip")
    load(folder / "traces.tgz")


def read_ignore_list(folder: Path) -> None:
    before = Path.cwd()
    os.chdir(folder)
    try:
        read_ignores()
    finally:
        os.chdir(before)


def questions(folder: Path) -> None:
    """The examples of clusters.md, and catalogs of prices."""
    page = (_PAGES / "clusters.md").read_text()
    for question, text in re.findall(r"`--objective (\w+)` .*?```yaml\n(.*?)```", page, re.DOTALL):
        (folder / f"{question}.yaml").write_text(text)
    prices = "InstanceType,Price,SpotPrice,Region,AvailabilityZone\np3.2xlarge,3.06,0.95,us-east-1,use1-az4\n"
    for day in ("monday", "tuesday"):
        (folder / f"{day}.csv").write_text(prices)


def read_question(name: Any) -> Callable[[Path], object]:
    return lambda folder: ask(name, folder / f"{name}.yaml", None)


def kineto_traces(folder: Path) -> None:
    kineto.write(folder / "trace.json", kineto.job(0, world=1))
    kineto.write(folder / "trace.json.gz", kineto.job(0, world=1))
