"""The HTTP server: routes and event streams. The hub renders the pages and executes requests."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from secrets import token_hex
from urllib.parse import parse_qsl

import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response, StreamingResponse
from starlette.routing import Route

from esprof.reports.live import page
from esprof.reports.live.connections import CrowdedProtocol
from esprof.reports.live.gate import Gate, GateMiddleware
from esprof.reports.live.hub import Hub, PageSections, Watched

_HEARTBEAT_S = 15.0
"""Interval of heartbeats on every stream, which detect closed browsers."""
_MAX_FORM_BYTES = 4096
_MAX_DIGITS = 6
"""Most digits of the number of a job in an address."""
_TYPES = {"live.css": "text/css", "live.js": "text/javascript"}


class Site:
    """The routes of a hub."""

    def __init__(self, hub: Hub, gate: Gate) -> None:
        self._hub, self._gate = hub, gate
        self._number = token_hex(8)
        """Distinguishes this server from an earlier one at the same address."""

    def app(self) -> Starlette:
        """The application. It watches the jobs while it runs."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with self._hub.watching():
                yield

        return Starlette(
            routes=[
                Route("/", self._home),
                Route("/events", self._home_events),
                Route("/jobs/{number}", self._job),
                Route("/jobs/{number}/events", self._job_events),
                Route("/jobs/{number}/{verb}", self._decide, methods=["POST"]),
                *(Route(f"/{name}", _asset) for name in _TYPES),
            ],
            middleware=[Middleware(GateMiddleware, gate=self._gate)],
            lifespan=lifespan,
        )

    async def _home(self, request: Request) -> Response:
        """The list of jobs; for a single job, its page."""
        if len(self._hub.jobs) == 1:
            return RedirectResponse(self._watched("1").base, 303)
        await self._hub.update()
        return self._page("Jobs", self._hub.list, "/events", home=None)

    async def _job(self, request: Request) -> Response:
        watched = self._job_of(request)
        await self._hub.update()
        home = "/" if len(self._hub.jobs) > 1 else None
        return self._page(watched.job.name, watched.sections, f"{watched.base}/events", home=home)

    async def _home_events(self, request: Request) -> Response:
        return self._stream(request, self._hub.list)

    async def _job_events(self, request: Request) -> Response:
        return self._stream(request, self._job_of(request).sections)

    async def _decide(self, request: Request) -> Response:
        """Execute a form of the page. The result is shown on the page."""
        watched, form = self._job_of(request), await _form(request)
        if not self._gate.is_from_page(form):
            raise HTTPException(403, "This page is from an earlier server: reload it.")
        plan = form.get("plan", "")
        match request.path_params["verb"]:
            case "accept":
                await self._hub.accept(watched, plan)
            case "reject":
                await self._hub.reject(watched, plan)
            case "roll-back":
                await self._hub.roll_back(watched, plan)
            case "search":
                await self._hub.start_search(watched)
            case _:
                raise HTTPException(404)
        return RedirectResponse(watched.base, 303)

    def _job_of(self, request: Request) -> Watched:
        return self._watched(request.path_params["number"])

    def _watched(self, number: str) -> Watched:
        jobs = list(self._hub.jobs.values())
        if not (number.isdecimal() and len(number) <= _MAX_DIGITS and 1 <= int(number) <= len(jobs)):
            raise HTTPException(404, "There is no job at this address.")
        return jobs[int(number) - 1]

    def _page(self, title: str, sections: PageSections, events: str, *, home: str | None) -> Response:
        html = page.full_page(title, sections.html, events=events, server=self._number, seen=sections.newest, home=home)
        return Response(html, media_type="text/html")

    def _stream(self, request: Request, sections: PageSections) -> Response:
        """Server-sent events: the sections that changed since the browser last saw them, and all later changes."""
        # A browser that reconnects sends the number of the last event that it received.
        last = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        seen = int(last) if last.isdecimal() and len(last) < 20 else 0
        return StreamingResponse(self._events(sections, seen), media_type="text/event-stream")

    async def _events(self, sections: PageSections, seen: int) -> AsyncIterator[bytes]:
        sections.viewers += 1
        self._hub.hurry()
        try:
            yield frame("hello", self._number.encode())
            while not self._hub.is_ending:
                news = sections.since(seen)
                for seen, name, html in news:
                    yield frame("section", msgspec.json.encode({"name": name, "html": html}), seen)
                if not news:
                    yield b":\n\n"
                await sections.wait(_HEARTBEAT_S)
        finally:
            sections.viewers -= 1


class PageServer(uvicorn.Server):
    """A server that ends the event streams at shutdown, before uvicorn waits for them."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.end()
        await super().shutdown(sockets)


def frame(event: str, data: bytes, number: int | None = None) -> bytes:
    """One server-sent event. `data` must be one line, such as JSON."""
    assert not {*b"\r\n"} & {*data}, "a line break would end the field"
    identified = b"" if number is None else b"id: %d\n" % number
    return identified + b"event: %s\ndata: %s\n\n" % (event.encode(), data)


def serve(hub: Hub, gate: Gate, listener: socket.socket) -> None:
    """Serve at `listener` until the process is asked to end."""
    config = uvicorn.Config(
        Site(hub, gate).app(),
        log_level="warning",
        access_log=False,
        server_header=False,
        http=CrowdedProtocol,
        ws="none",
        timeout_graceful_shutdown=5,
    )
    PageServer(config, hub).run([listener])


async def _asset(request: Request) -> Response:
    name = request.url.path[1:]
    return Response(page.asset(name), media_type=_TYPES[name])


async def _form(request: Request) -> dict[str, str]:
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > _MAX_FORM_BYTES:
            raise HTTPException(413)
    return dict(parse_qsl(body.decode(errors="replace")))
