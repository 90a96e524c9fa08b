"""The server: which address answers with what. What is shown and done is the hub's."""

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
from esprof.reports.live.gate import Gate, GateMiddleware
from esprof.reports.live.hub import Hub, PageParts, Watched

_HEARTBEAT_S = 15.0
"""So often something is sent on every stream: so a browser that has gone is noticed."""
_MAX_FORM_BYTES = 4096
_MAX_OPEN_REQUESTS = 200
"""Requests that are answered at a time; a page that is open is one."""
_TYPES = {"live.css": "text/css", "live.js": "text/javascript"}


class Site:
    """The addresses of one hub."""

    def __init__(self, hub: Hub, gate: Gate) -> None:
        self._hub, self._gate = hub, gate
        self._number = token_hex(8)
        """Tells this server from one before it at the same address."""

    def app(self) -> Starlette:
        """The application, which watches the jobs for as long as it runs."""

        @asynccontextmanager
        async def lifespan(_: Starlette) -> AsyncIterator[None]:
            async with self._hub.watching():
                yield

        return Starlette(
            routes=[
                Route("/", self._home),
                Route("/events", self._home_events),
                Route("/jobs/{number:int}", self._job),
                Route("/jobs/{number:int}/events", self._job_events),
                Route("/jobs/{number:int}/{verb}", self._decide, methods=["POST"]),
                *(Route(f"/{name}", _asset) for name in _TYPES),
            ],
            middleware=[Middleware(GateMiddleware, gate=self._gate)],
            lifespan=lifespan,
        )

    async def _home(self, request: Request) -> Response:
        """The list of jobs; where there is one alone, its page."""
        if len(self._hub.jobs) == 1:
            return RedirectResponse(self._watched(1).base, 303)
        await self._hub.update()
        return self._page("Jobs", self._hub.list, "/events", home=None)

    async def _job(self, request: Request) -> Response:
        watched = self._asked(request)
        await self._hub.update()
        home = "/" if len(self._hub.jobs) > 1 else None
        return self._page(watched.job.name, watched.parts, f"{watched.base}/events", home=home)

    async def _home_events(self, request: Request) -> Response:
        return self._stream(request, self._hub.list)

    async def _job_events(self, request: Request) -> Response:
        return self._stream(request, self._asked(request).parts)

    async def _decide(self, request: Request) -> Response:
        """Do what a form of the page asks for; what comes of it is shown on the page."""
        watched, form = self._asked(request), await _form(request)
        if not self._gate.is_from_page(form):
            raise HTTPException(403, "This page is of an earlier server: reload it.")
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

    def _asked(self, request: Request) -> Watched:
        return self._watched(request.path_params["number"])

    def _watched(self, number: int) -> Watched:
        jobs = list(self._hub.jobs.values())
        if not 1 <= number <= len(jobs):
            raise HTTPException(404, "No such job is served here.")
        return jobs[number - 1]

    def _page(self, title: str, parts: PageParts, events: str, *, home: str | None) -> Response:
        html = page.whole(title, parts.html, events=events, server=self._number, seen=parts.newest, home=home)
        return Response(html, media_type="text/html")

    def _stream(self, request: Request, parts: PageParts) -> Response:
        """Server-sent events: the parts that have changed since the browser saw them, now and from now on."""
        # A browser that comes back by itself says what it has seen last.
        asked = request.headers.get("last-event-id") or request.query_params.get("seen", "")
        seen = int(asked) if asked.isdecimal() and len(asked) < 20 else 0
        return StreamingResponse(self._events(parts, seen), media_type="text/event-stream")

    async def _events(self, parts: PageParts, seen: int) -> AsyncIterator[bytes]:
        parts.viewers += 1
        self._hub.hurry()
        try:
            yield frame("hello", self._number.encode())
            while not self._hub.is_ending:
                news = parts.since(seen)
                for seen, name, html in news:
                    yield frame("part", msgspec.json.encode({"name": name, "html": html}), seen)
                if not news:
                    yield b":\n\n"
                await parts.wait(_HEARTBEAT_S)
        finally:
            parts.viewers -= 1


class PageServer(uvicorn.Server):
    """Ends the streams before it waits for them to end."""

    def __init__(self, config: uvicorn.Config, hub: Hub) -> None:
        super().__init__(config)
        self._hub = hub

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._hub.end()
        await super().shutdown(sockets)


def frame(event: str, data: bytes, number: int | None = None) -> bytes:
    """One server-sent event; `data` is on one line, as JSON is."""
    assert not {*b"\r\n"} & {*data}, "a line of an event ends there"
    identified = b"" if number is None else b"id: %d\n" % number
    return identified + b"event: %s\ndata: %s\n\n" % (event.encode(), data)


def serve(hub: Hub, gate: Gate, listener: socket.socket) -> None:
    """Answer at `listener` until the process is asked to end."""
    config = uvicorn.Config(
        Site(hub, gate).app(),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=_MAX_OPEN_REQUESTS,
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
