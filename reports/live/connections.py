"""Limits the open connections: those of silent or slow clients must not keep others out."""

from itertools import count
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

MAX_WAITING = 200
"""Most connections without an answer: silent ones, and requests that arrive slowly."""
MAX_ANSWERED = 200
"""Most connections with an unfinished answer, such as the event stream of an open page."""

_number = count()


class CrowdedProtocol(H11Protocol):
    """A connection. If there are too many, the oldest is closed: a browser connects again, an idle client does not."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._number = next(_number)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        known = sorted(
            (one for one in self.connections if isinstance(one, CrowdedProtocol)), key=lambda one: one._number
        )
        answered = [one for one in known if one.is_answered]
        waiting = [one for one in known if not one.is_answered]
        for one in (*answered[:-MAX_ANSWERED], *waiting[:-MAX_WAITING]):
            one.transport.abort()

    @property
    def is_answered(self) -> bool:
        """Whether an answer has begun and not ended."""
        return self.cycle is not None and self.cycle.response_started and not self.cycle.response_complete
