"""Automatic searches of the hub, and names of jobs."""

import asyncio
from pathlib import Path

import pytest

from esprof.reports.live import hub as hubs
from esprof.reports.live.hub import names_of
from esprof.reports.live.proposal import read_search
from tests.cases import live


def test_jobs_are_named_by_the_shortest_unique_end_of_their_path():
    paths = [Path("/a/x/run"), Path("/a/y/run"), Path("/b/other")]
    assert names_of(paths) == [("x/run", paths[0]), ("y/run", paths[1]), ("other", paths[2])]


@pytest.mark.slow
def test_a_search_imports_nothing_from_the_current_folder(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise SystemExit('planted')")
    monkeypatch.chdir(tmp_path)
    run = live.running(tmp_path / "run")
    (run / "telemetry.request").mkdir()  # So that the search ends at once.
    assert asyncio.run(hubs._run_search(run, 0)) == ""
    assert read_search(run / "advice.json").reason.startswith("cannot be written")


def test_a_change_point_starts_one_search(tmp_path, monkeypatch):
    run, searched = live.running(tmp_path / "run", steps=100), []

    async def search(path, since):
        searched.append(path)
        return ""

    monkeypatch.setattr(hubs, "_run_search", search)
    _, hub, _ = live.site(run)

    async def watch():
        for first in (100, 200, 300):
            await hub.update()
            await asyncio.sleep(0)
            live.write_steps(run, [live.live_step(first + at, first * 1e3) for at in range(100)])
        await hub.update()
        await asyncio.sleep(0)

    asyncio.run(watch())
    assert searched == [run]  # There were several change points, but at most one search in ten minutes.
