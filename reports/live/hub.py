"""Polls the files of jobs, keeps their pages up to date, and executes the requests of users."""

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
"""Polling interval of the files while a page is open."""
_REFRESH_UNVIEWED_S = 5.0
"""Polling interval while no page is open."""
_MAX_SEARCH_S = 300.0
"""Timeout of a search."""
_MIN_BETWEEN_SEARCHES_S = 600.0
"""Least time between two automatic searches."""


class PageSections:
    """The sections of a page, each with the number of its last change."""

    def __init__(self) -> None:
        self.html: dict[str, str] = {}
        self.newest = 0
        self.viewers = 0
        self._changed_by: dict[str, int] = {}
        self._news = asyncio.Event()

    def put(self, sections: dict[str, str]) -> None:
        """Store sections, and wake all who wait for a change."""
        changed = [name for name, html in sections.items() if self.html.get(name) != html]
        for name in changed:
            self.newest += 1
            self.html[name], self._changed_by[name] = sections[name], self.newest
        if changed:
            self.wake()

    def since(self, seen: int) -> list[tuple[int, str, str]]:
        """(number, name, HTML) of the sections changed after change `seen`, oldest first."""
        found = [(number, name, self.html[name]) for name, number in self._changed_by.items() if number > seen]
        return sorted(found)

    def wake(self) -> None:
        """Wake all who wait for a change."""
        self._news.set()
        self._news = asyncio.Event()

    async def wait(self, within_s: float) -> None:
        """Return at the next change, at the latest after `within_s`."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._news.wait(), within_s)


class Watched:
    """A job with its page."""

    def __init__(self, job: WatchedJob, base: str) -> None:
        self.job, self.base, self.sections = job, base, PageSections()
        self.view: View | None = None
        self.deciding = asyncio.Lock()
        """Serialises the decisions about a job."""
        self.reading = asyncio.Lock()
        """Serialises the threads that read files."""
        self.fault = ""
        """Why the page could not be drawn the last time."""
        self.searched_at = -math.inf
        self.search: asyncio.Task[None] | None = None


class Hub:
    """All served jobs. Its coroutines run in one event loop; threads read and write files."""

    def __init__(self, runs: Iterable[tuple[str, Path]], page_token: str) -> None:
        """`runs` are the unique names of the jobs, and their Run directories."""
        self.jobs = {
            name: Watched(WatchedJob(run, name), f"/jobs/{number}") for number, (name, run) in enumerate(runs, 1)
        }
        self.list = PageSections()
        self.is_ending = False
        self._page_token = page_token
        self._beat = asyncio.Event()

    @asynccontextmanager
    async def watching(self) -> AsyncIterator[None]:
        """Keep the pages up to date while the block runs."""
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
        """End all event streams; the server waits for them."""
        self.is_ending = True
        for sections in (self.list, *(watched.sections for watched in self.jobs.values())):
            sections.wake()

    async def update(self) -> None:
        """Read the files and update all pages."""
        for watched in self.jobs.values():
            await self._refresh(watched)
            self._search_if_changed(watched)
        listed = [(watched.base, watched.view) for watched in self.jobs.values() if watched.view is not None]
        self.list.put(page.list_sections(listed))

    async def accept(self, watched: Watched, plan_id: str) -> None:
        """Send the proposed plan to the job, if it still is `plan_id`."""
        async with self._decision(watched) as job:
            proposal = _view(watched).proposal
            if proposal is None or proposal.plan is None or proposal.plan.id != plan_id:
                job.message = "Nothing was done: there is a newer proposal."
            elif _view(watched).proposal_state != "proposed":
                job.message = f"Nothing was done: the proposal is {_view(watched).proposal_state}."
            else:
                await to_thread.run_sync(decisions.accept, job.run, proposal.plan, job.history, job.next_step)

    async def reject(self, watched: Watched, plan_id: str) -> None:
        """Record the rejection of the proposed plan."""
        async with self._decision(watched) as job:
            proposal = _view(watched).proposal
            if proposal is None or proposal.plan is None or proposal.plan.id != plan_id:
                job.message = "Nothing was done: there is a newer proposal."
            elif _view(watched).proposal_state == "proposed":
                await to_thread.run_sync(decisions.reject, job.run, proposal.plan, job.next_step)

    async def roll_back(self, watched: Watched, plan: str) -> None:
        """Restore the state before `plan`, ID:VERSION, if the plan is still active."""
        async with self._decision(watched) as job:
            adopted = decisions.revocable(job.history)
            if adopted is None or f"{adopted.plan}:{adopted.version}" != plan:
                job.message = "Nothing was done: the plan is no longer active."
                return
            await to_thread.run_sync(decisions.roll_back, job.run, adopted, job.history, job.next_step)

    async def start_search(self, watched: Watched) -> None:
        """Start a search, unless one is running."""
        if watched.search is None or watched.search.done():
            watched.job.is_searching = True
            watched.search = asyncio.create_task(self._search(watched))

    @asynccontextmanager
    async def _decision(self, watched: Watched) -> AsyncIterator[WatchedJob]:
        """Read the files, run the block, and show its error, if any, as the message of the page."""
        job = watched.job
        async with watched.deciding:
            await self._refresh(watched)
            job.message = ""
            try:
                yield job
            except EsprofError as error:
                job.message = " ".join(str(error).split())
            await self._refresh(watched)

    async def _watch(self) -> None:
        while True:
            all_sections = (self.list, *(watched.sections for watched in self.jobs.values()))
            beat = _REFRESH_VIEWED_S if any(one.viewers for one in all_sections) else _REFRESH_UNVIEWED_S
            with suppress(TimeoutError):
                await asyncio.wait_for(self._beat.wait(), beat)
            self._beat.clear()
            try:
                await self.update()
            except Exception:  # noqa: BLE001 A bad file must not stop the pages.
                traceback.print_exc()

    def hurry(self) -> None:
        """Read the files now, for a new viewer."""
        self._beat.set()

    async def _refresh(self, watched: Watched) -> None:
        """Read a job's files and render its page."""
        async with watched.reading:
            await to_thread.run_sync(watched.job.refresh)
            try:
                self._draw(watched)
                watched.fault = ""
            except Exception as error:  # noqa: BLE001 Whatever is in its files, the pages of other jobs are shown.
                if repr(error) != watched.fault:
                    traceback.print_exc()
                watched.fault = repr(error)
                watched.sections.put(page.fault_sections(watched.fault))

    def _draw(self, watched: Watched) -> None:
        watched.view = view_of(watched.job)
        watched.sections.put(page.job_sections(watched.view, self._page_token, watched.base))

    def _search_if_changed(self, watched: Watched) -> None:
        """Start a search after a change point, unless there was one recently."""
        has_changed, watched.job.has_changed = watched.job.has_changed, False
        is_searching = watched.search is not None and not watched.search.done()
        if has_changed and not is_searching and time.monotonic() - watched.searched_at > _MIN_BETWEEN_SEARCHES_S:
            watched.search = asyncio.create_task(self._search(watched))

    async def _search(self, watched: Watched) -> None:
        """Run a search as a process, which writes its result to the Run."""
        job = watched.job
        job.is_searching, job.message = True, ""
        try:
            await self._refresh(watched)
            job.message = await _run_search(job.run, job.since or 0)
        finally:
            job.is_searching, watched.searched_at = False, time.monotonic()
        await self._refresh(watched)


def names_of(runs: Sequence[Path]) -> list[tuple[str, Path]]:
    """A unique name for each: the folder's, with as much of the path as needed."""
    found = []
    for run in runs:
        for depth in range(1, len(run.parts) + 1):
            name = "/".join(run.parts[-depth:])
            if sum(other.parts[-depth:] == run.parts[-depth:] for other in runs) == 1:
                break
        found.append((name, run))
    return found


def _view(watched: Watched) -> View:
    if watched.view is None:
        raise EsprofError("the files of this job cannot be shown")
    return watched.view


async def _run_search(run: Path, since: int) -> str:
    """The error message; empty if the search wrote its result to the Run."""
    process = await asyncio.create_subprocess_exec(
        *module_line("esprof.reports.live.advice_search", str(run), str(since)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        _, stderr = await asyncio.wait_for(process.communicate(), _MAX_SEARCH_S)
    except TimeoutError:
        return f"The search was stopped after {_MAX_SEARCH_S:g} s."
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
    if process.returncode == 0:
        return ""
    lines = stderr.decode(errors="replace").split("\n")
    last = next((line for line in reversed(lines) if line.strip()), f"exit code {process.returncode}")
    return f"The search failed: {last.strip()}"
