"""Plans delivered through a torch.distributed store, for jobs on several machines without a shared folder."""

import time
from datetime import timedelta
from typing import Any

import torch.distributed as dist

from esprof.core.errors import OutputError, UsageError

POLL_INTERVAL_S = 1.0
"""Minimum interval between polls: each is a round trip to another process."""


class PlanKey:
    """A key of a store; the status has the key `KEY/status`."""

    def __init__(self, store: Any, key: str) -> None:
        self._store, self._key = store, key
        self._seen: bytes | None = None
        self._next_s = 0.0

    def poll(self) -> bytes | None:
        now = time.monotonic()
        if now < self._next_s:
            return None
        self._next_s = now + POLL_INTERVAL_S
        content = self._get(self._key)
        if content is None or content == self._seen:
            return None
        self._seen = content
        return content

    def put(self, plan: bytes) -> None:
        self._set(self._key, plan)

    def report_status(self, status: bytes) -> None:
        self._set(f"{self._key}/status", status)

    def status(self) -> bytes | None:
        return self._get(f"{self._key}/status")

    def _get(self, key: str) -> bytes | None:
        try:
            return bytes(self._store.get(key)) if self._store.check([key]) else None
        except RuntimeError:  # The type of c10d's connection errors.
            return None

    def _set(self, key: str, value: bytes) -> None:
        try:
            self._store.set(key, value)
        except RuntimeError as error:
            raise OutputError(f"cannot set {key} in the store: {error}") from error


def connect(address: str, timeout_s: float) -> PlanKey:
    """The key `HOST:PORT/KEY` of a running TCPStore. Raises UsageError."""
    endpoint, _, key = address.partition("/")
    host, _, port = endpoint.rpartition(":")
    if not (host and port.isdecimal() and key):
        raise UsageError(f"{address} does not have the form HOST:PORT/KEY")
    try:
        store = dist.TCPStore(  # type: ignore[attr-defined]
            host, int(port), is_master=False, timeout=timedelta(seconds=timeout_s)
        )
    except (RuntimeError, ValueError) as error:
        raise UsageError(f"no store answers at {endpoint}: {str(error).partition(chr(10))[0]}") from error
    return PlanKey(store, key)
