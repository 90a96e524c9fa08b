"""Access control: rejects requests from pages of other sites, and from other machines without the token."""

import hmac
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_urlsafe
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

_YEAR_S = 365 * 24 * 3600
_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; "
        "base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "referrer-policy": "same-origin",  # With no-referrer a form's own Origin would be null.
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "cache-control": "no-store",
}


@dataclass(frozen=True)
class Gate:
    """The rules for requests."""

    host: str
    """The address that the server listens on."""
    token: str | None
    """Sent once by a browser, which then gets a cookie; None if the server listens on this machine only."""
    page_token: str = field(default_factory=token_urlsafe)
    """Part of every form of our pages, against cross-site request forgery: other sites cannot read it."""

    def refusal(self, request: Request) -> Response | None:
        """The response to a rejected request; None if the request is allowed."""
        name = _name(request.headers.get("host", ""))
        if not self._is_own_name(name):
            # DNS rebinding: a foreign name that resolves to this address would make a foreign page same-origin.
            return PlainTextResponse("This page is not served under that name. Use its address.\n", 421)
        if self.token is not None and not self._has_token(request, self.token):
            return self._entry(request, self.token)
        origin = request.headers.get("origin")
        if request.method not in ("GET", "HEAD") and origin is not None:
            ours = request.headers["host"]
            if origin not in (f"http://{ours}", f"https://{ours}"):
                return PlainTextResponse("The request comes from another site.\n", 403)
        return None

    def is_from_page(self, form: Mapping[str, str]) -> bool:
        """Whether one of our pages sent this form."""
        return hmac.compare_digest(form.get("from", "").encode(), self.page_token.encode())

    def _is_own_name(self, name: str) -> bool:
        if name in ("localhost", self.host.lower()):
            return True
        try:
            address = ipaddress.ip_address(name)
        except ValueError:
            return self.token is not None and name in _machine_names()
        return self.token is not None or address.is_loopback

    def _has_token(self, request: Request, token: str) -> bool:
        shown = request.cookies.get(_cookie(request), "")
        bearer = request.headers.get("authorization", "").removeprefix("Bearer ")
        return hmac.compare_digest(shown.encode(), _cookie_value(token).encode()) or hmac.compare_digest(
            bearer.encode(), token.encode()
        )

    def _entry(self, request: Request, token: str) -> Response:
        """Accept a token in the address, and redirect to the address without it, so that no browser history stores it."""
        given = parse_qs(request.url.query).get("token", [""])[0]
        if request.method != "GET" or not hmac.compare_digest(given.encode(), token.encode()):
            return PlainTextResponse("A token is needed: add ?token=TOKEN to the address.\n", 401)
        # Browsers take //HOST/ for another site.
        answer = RedirectResponse(f"/{request.url.path.lstrip('/')}", 303)
        answer.set_cookie(_cookie(request), _cookie_value(token), max_age=_YEAR_S, httponly=True, samesite="lax")
        return answer


class GateMiddleware:
    """Applies the gate to each request, and adds the security headers to each response."""

    def __init__(self, app: ASGIApp, gate: Gate) -> None:
        self._app, self._gate = app, gate

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def sent(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(_HEADERS)
            await send(message)

        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        refusal = self._gate.refusal(Request(scope))
        await (refusal or self._app)(scope, receive, sent)


def _name(host: str) -> str:
    """The name or address of a Host header, without the port."""
    try:
        return urlsplit(f"//{host}").hostname or ""
    except ValueError:
        return ""


def _machine_names() -> set[str]:
    return {socket.gethostname().lower(), socket.getfqdn().lower()}


def _cookie(request: Request) -> str:
    """Name of the cookie. It contains the port, since browsers send cookies to all ports of a host."""
    return f"esprof-{request.url.port or 80}"


def _cookie_value(token: str) -> str:
    """Value of the cookie: a hash, so that the browser does not store the token."""
    return sha256(b"esprof serve\0" + token.encode()).hexdigest()
