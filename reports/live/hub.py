"""Watches jobs, keeps their pages up to date for all who look at them, and does what a person asks for."""

import asyncio
import math
import time
import traceback
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path

from anyio import to_thread

from esprof.core.errors import EsprofError
from esprof.reports.live import decisions, page
from esprof.reports.live.job import WatchedJob
from esprof.reports.live.view import View, view_of
from esprof.verbs import module_line

_REFRESH_VIEWED_S = 1.0
"""How often the files are looked at while somebody looks at a page."""
_REFRESH_UNVIEWED_S = 5.0
"""And while nobody does."""
_MAX_SEARCH_S = 300.0
"""A search for advice that takes longer is given up."""
_MIN_BETWEEN_SEARCHES_S = 600.0
"""Least time between two searches that nobody has asked for."""


class PageParts:
    """The parts of one page, each with the number of the change that made it what it is."""

    def __init__(self) -> None:
        self.html: dict[str, str] = {}
        self.newest = 0
        self.viewers = 0
        self._changed_by: dict[str, int] = {}
        self._news = asyncio.Event()

    def put(self, parts: dict[str, str]) -> None:
        """Take in parts; who waits for a change is told."""
        changed = [name for name, html in parts.items() if self.html.get(name) != html]
        for name in changed:
            self.newest += 1
            self.html[name], self._changed_by[name] = parts[name], self.newest
        if changed:
            self.wake()

    def since(self, seen: int) -> list[tuple[int, str, str]]:
        """(number, name, HTML) of what has changed after change `seen`, oldest first."""
        found = [(number, name, self.html[name]) for name, number in self._changed_by.items() if number > seen]
        return sorted(found)

    def wake(self) -> None:
        """Let all who wait look again."""
        self._news.set()
        self._news = asyncio.Event()

    async def wait(self, within_s: float) -> None:
        """Return at the next change, or when the time is over."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), within_s)


class Watched:
    """A job with its page."""

    def __init__(self, job: WatchedJob, base: str) -> None:
        self.job, self.base, self.parts = job, base, PageParts()
        self.view: View | None = None
        self.deciding = asyncio.Lock()
        """One thing after the other is done to a job."""
        self.reading = asyncio.Lock()
        """Files are read by threads, one at a time."""
        self.looked_at = -math.inf
        self.search: asyncio.Task[None] | None = None


class Hub:
    """All that is served. Its coroutines run in one event loop; files are read and written by threads."""

    def __init__(self, runs: Iterable[tuple[str, Path]], page_token: str) -> None:
        """`runs` are the jobs' names, which differ, and their Run directories."""
        self.jobs = {
            name: Watched(WatchedJob(run, name), f"/jobs/{number}") for number, (name, run) in enumerate(runs, 1)
        }
        self.list = PageParts()
        self.is_ending = False
        self._page_token = page_token
        self._beat = asyncio.Event()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Within it pages are kept up to date."""
        await self.update()
        task = asyncio.create_task(self._watch())
        try:
            yield
        finally:
            self.end()
            searches = [watched.search for watched in self.jobs.values() if watched.search is not None]
            for one in (task, *searches):
                one.cancel()
            await asyncio.gather(task, *searches, return_exceptions=True)

    def end(self) -> None:
        """Let go of all who look at pages: no server ends before they do."""
        self.is_ending = True
        for parts in (self.list, *(watched.parts for watched in self.jobs.values())):
            parts.wake()

    async def update(self) -> None:
        """Look at the files, and bring all pages up to date."""
        for watched in self.jobs.values():
            await self._refresh(watched)
            self._look_if_shifted(watched)
        listed = [(watched.base, watched.view) for watched in self.jobs.values() if watched.view is not None]
        self.list.put(page.list_parts(listed))

    async def accept(self, watched: Watched, plan_id: str) -> None:
        """Hand the plan that is offered to the job, if it is this one."""
        async with self._decision(watched) as job:
            offer = _view(watched).offer
            if offer is None or offer.plan is None or offer.plan.id != plan_id:
                job.said = "Nothing was done: that advice is not the newest any more."
            elif _view(watched).offer_state != "offered":
                job.said = f"Nothing was done: that advice is {_view(watched).offer_state}."
            else:
                await to_thread.run_sync(decisions.accept, job.run, offer.plan, job.history, job.next_step)

    async def reject(self, watched: Watched, plan_id: str) -> None:
        """Remember that the plan that is offered is not wanted."""
        async with self._decision(watched) as job:
            offer = _view(watched).offer
            if offer is None or offer.plan is None or offer.plan.id != plan_id:
                job.said = "Nothing was done: that advice is not the newest any more."
            elif _view(watched).offer_state == "offered":
                await to_thread.run_sync(decisions.reject, job.run, offer.plan, job.next_step)

    async def roll_back(self, watched: Watched, plan: str) -> None:
        """Put the job back to what it did before `plan`, ID:VERSION, if that still holds."""
        async with self._decision(watched) as job:
            adopted = decisions.revocable(job.history)
            if adopted is None or f"{adopted.plan}:{adopted.version}" != plan:
                job.said = "Nothing was done: that plan does not hold any more."
                return
            await to_thread.run_sync(decisions.roll_back, job.run, adopted, job.history, job.next_step)

    async def look(self, watched: Watched) -> None:
        """Begin a search for advice, unless one goes on."""
        if watched.search is None or watched.search.done():
            watched.job.is_looking = True
            watched.search = asyncio.create_task(self._search(watched))

    @asynccontextmanager
    async def _decision(self, watched: Watched) -> AsyncIterator[WatchedJob]:
        """Decide by what the files tell now, and say where that fails; else the files show what came of it."""
        job = watched.job
        async with watched.deciding:
            await self._refresh(watched)
            job.said = ""
            try:
                yield job
            except EsprofError as error:
                job.said = " ".join(str(error).split())
            await self._refresh(watched)

    async def _watch(self) -> None:
        while True:
            parts = (self.list, *(watched.parts for watched in self.jobs.values()))
            beat = _REFRESH_VIEWED_S if any(one.viewers for one in parts) else _REFRESH_UNVIEWED_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._beat.wait(), beat)
            self._beat.clear()
            try:
                await self.update()
            except Exception:  # noqa: BLE001 Whatever a file holds, the pages go on.
                traceback.print_exc()

    def hurry(self) -> None:
        """Look at the files at once: somebody has come."""
        self._beat.set()

    async def _refresh(self, watched: Watched) -> None:
        """Read a job's files, and draw its page."""
        async with watched.reading:
            await to_thread.run_sync(watched.job.refresh)
            self._draw(watched)

    def _draw(self, watched: Watched) -> None:
        watched.view = view_of(watched.job)
        watched.parts.put(page.job_parts(watched.view, self._page_token, watched.base))

    def _look_if_shifted(self, watched: Watched) -> None:
        """Search for advice by ourselves where steps have lastingly changed: once, and not soon again."""
        has_shifted, watched.job.has_shifted = watched.job.has_shifted, False
        is_searching = watched.search is not None and not watched.search.done()
        if has_shifted and not is_searching and time.monotonic() - watched.looked_at > _MIN_BETWEEN_SEARCHES_S:
            watched.search = asyncio.create_task(self._search(watched))

    async def _search(self, watched: Watched) -> None:
        """Look for advice in a process of its own, which leaves what it finds in the Run."""
        job = watched.job
        job.is_looking, job.said = True, ""
        try:
            await self._refresh(watched)
            job.said = await _run_search(job.run, job.since or 0)
        finally:
            job.is_looking, watched.looked_at = False, time.monotonic()
        await self._refresh(watched)


def names_of(runs: Sequence[Path]) -> list[tuple[str, Path]]:
    """Each with a name of its own: the folder's, and as much of the path as tells it from the others."""
    found = []
    for run in runs:
        for depth in range(1, len(run.parts) + 1):
            name = "/".join(run.parts[-depth:])
            if sum(other.parts[-depth:] == run.parts[-depth:] for other in runs) == 1:
                break
        found.append((name, run))
    return found


def _view(watched: Watched) -> View:
    assert watched.view is not None, "it is drawn before anything is decided"
    return watched.view


async def _run_search(run: Path, since: int) -> str:
    """What went wrong; nothing where it left an answer in the Run."""
    process = await asyncio.create_subprocess_exec(
        *module_line("esprof.reports.live.advice_search", str(run), str(since)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, told = await asyncio.wait_for(process.communicate(), _MAX_SEARCH_S)
    except TimeoutError:
        return f"The search for advice was given up after {_MAX_SEARCH_S:g} s."
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return ""
    lines = told.decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), f"it ended with {process.returncode}")
    return f"The search for advice has failed: {last.strip()}"
