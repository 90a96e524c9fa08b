"""`esprof serve`."""

import ipaddress
import os
import secrets
import socket
from contextlib import ExitStack
from pathlib import Path
from urllib.parse import quote

import click

from esprof.core.errors import EXIT_OK, EsprofError, InputError, MissingDependencyError, UsageError, unreadable
from esprof.reports.live.lock import Lock

TOKEN_VARIABLE = "ESPROF_SERVE_TOKEN"

_MAX_TOKEN_BYTES = 4096
_MIN_TOKEN_CHARACTERS = 16
"""Shortest token that is hard to guess."""


@click.command("serve")
@click.argument("runs", metavar="RUN…", nargs=-1, required=True, type=click.Path(path_type=Path))
@click.option("--host", metavar="ADDRESS", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option(
    "--port",
    metavar="PORT",
    type=click.IntRange(0, 65535),
    default=8765,
    show_default=True,
    help="Port to listen on; 0 selects a free one.",
)
@click.option(
    "--token-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help=f"File with the token that browsers need (or the variable {TOKEN_VARIABLE}). Default: a random token.",
)
def command(runs: tuple[Path, ...], host: str, port: int, token_file: Path | None) -> int:
    """Serve a web page that shows and steers elastic jobs.

    Each RUN is the directory of one running or ended job. Its script creates ElasticTrainer(telemetry=RUN,
    placement=Placement(plan="RUN/plan.json")). On the page, request recommendations, accept or reject them, and roll
    plans back. All decisions are stored in RUN, so the server can be restarted at any time.

    By default the page is available on this machine only. With another --host, browsers need a token; esprof creates
    one if none is given. The address of the page is printed on stdout, with a token that esprof has created.

    \b
    esprof serve RUN
    esprof serve RUN OTHER_RUN --host 0.0.0.0
    """
    try:
        from esprof.reports.live.gate import Gate
        from esprof.reports.live.hub import Hub, names_of
        from esprof.reports.live.server import serve
    except ModuleNotFoundError as error:
        if error.name not in ("starlette", "uvicorn", "anyio"):
            raise
        raise MissingDependencyError(
            f"serving needs {error.name}, which is not installed", remedy="pip install 'esprof[serve]'"
        ) from error
    folders = list(dict.fromkeys(run.resolve() for run in runs))
    for folder in folders:
        _make(folder)
    given = _token(token_file)
    with ExitStack() as ends:
        locks = [ends.enter_context(Lock(folder)) for folder in folders]
        listener = ends.enter_context(_listen(host, port))
        address, port = listener.getsockname()[:2]
        at = ipaddress.ip_address(address)
        created = secrets.token_urlsafe(24) if given is None and not at.is_loopback else None
        shown = socket.getfqdn() if at.is_unspecified else host
        url = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}/"
        for lock in locks:
            lock.publish(url)
        gate = Gate(host, given or created)
        click.echo(url if created is None else f"{url}?token={quote(created, safe='')}")
        if given is not None:  # Whoever gave it knows it, and stdout may be a log.
            click.echo("Add ?token=TOKEN to the address once", err=True)
        click.echo(f"Serving {', '.join(map(str, folders))}; press Ctrl-C to stop", err=True)
        serve(Hub(names_of(folders), gate.page_token), gate, listener)
    return EXIT_OK


def _token(file: Path | None) -> str | None:
    """The token in the file or in the variable; None without either. A word of the command line would be in the list of
    processes, which every user may read. Raises InputError if the file cannot be read, UsageError for a short token."""
    if file is None:
        token = os.environ.get(TOKEN_VARIABLE)
    else:
        try:
            with file.open("rb") as opened:
                token = opened.read(_MAX_TOKEN_BYTES).decode().strip()
        except OSError as error:
            raise unreadable(file, error) from error
        except UnicodeDecodeError as error:
            raise InputError("is not UTF-8 text", path=file) from error
    if token is not None and len(token) < _MIN_TOKEN_CHARACTERS:
        raise UsageError(f"a token needs at least {_MIN_TOKEN_CHARACTERS} characters")
    return token


def _make(folder: Path) -> None:
    """Create the folder of a job that has not started yet, as the job would. Raises UsageError if that is
    impossible."""
    if not folder.is_dir():
        if folder.exists() or not folder.parent.is_dir():
            raise UsageError(
                f"{folder} is not a folder and cannot be created",
                remedy="Name the value of ElasticTrainer(telemetry=…) in the job.",
            )
        folder.mkdir(mode=0o700)
        click.echo(f"{folder} did not exist: waiting for its job", err=True)


def _listen(host: str, port: int) -> socket.socket:
    """A socket at the first address of the host. Raises EsprofError."""
    try:
        family, kind, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[
            0
        ]
        listener = socket.socket(family, kind)
        try:
            listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            listener.bind(address)
            listener.listen()  # Early connections wait until the server is ready.
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise EsprofError(
            f"cannot listen at {host}, port {port}: {error.strerror or error}",
            remedy="Choose another --port; 0 selects a free one.",
        ) from error
    return listener
