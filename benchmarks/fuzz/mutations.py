"""Changes of valid files by chance: of their bytes, of their words, and of their JSON values."""

import json
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

Change = Callable[[Random, bytes], bytes]

MOST_BYTES = 1 << 20
"""Largest changed file: larger ones only take longer."""

_NUMBERS = (0, -1, 1, 127, 128, 255, 1 << 31, (1 << 31) - 1, -(1 << 31), 1 << 62, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)
_HOSTILE = "</script>::error::\x1b[31m\u202e|\n\ud800"
_DEEP = 3_000
"""More levels of brackets than Python allows calls."""

_VALUES: tuple[Callable[[], Any], ...] = (
    *(
        (lambda number=number: number)
        for number in (*_NUMBERS, 10**400, 0.5, -0.0, 1e308, -1e308, float("nan"), float("inf"))
    ),
    *(
        (lambda text=text: text)
        for text in ("", "0", "x" * 3_000, _HOSTILE, "../../etc/passwd", "/dev/zero", "\0", "1e999")
    ),
    *((lambda value=value: value) for value in (None, True, False)),
    list,
    dict,
    lambda: [[]] * 300,
    lambda: [0] * 3_000,
    lambda: {str(number): number for number in range(300)},
)

_WORDS = (
    *(
        b"[" * _DEEP,
        b'{"a":' * _DEEP,
        b"]}" * 30,
        b"null",
        b"NaN",
        b"-Infinity",
        b"1e999",
        b"9" * 5_000,
        b"\\ud800",
        b"\xff\xfe",
    ),
    *(b"\0", b"\r\n", b"\n", b",", b":", b'"', b"\xef\xbb\xbf", b"../", b"%s", b"\x1b[2J", b"\xe2\x80\xae"),
    *(
        b"&a [*a]",
        b"&a {a: *a}",
        b"*a",
        b"!!python/object/apply:os.system [true]",
        b"!!timestamp x",
        b"!!int ''",
        b"0b_",
    ),
    *(
        b"2001-99-99",
        b"? [a]: b",
        b"<<: 1",
        b"=",
        b"!!binary x",
        b"1:99",
        b"--- ",
        b"%YAML 9.9\n",
        b"!!float ''",
        b"!!set {a}",
    ),
    *(
        b"PK\x05\x06",
        b"\x1f\x8b\x08",
        b"PAR1",
        b"SQLite format 3\0",
        b"\x80\x02.",
        b"c__builtin__\neval\n",
        b"\x80\x04\x95",
    ),
)


def mutated(random: Random, valid: bytes) -> bytes:
    """A file that differs from a valid one in one place, or in a few."""
    content = valid
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        content = random.choice(_CHANGES)(random, content)[:MOST_BYTES]
    return content


def _range(random: Random, content: bytes, most: int = 64) -> tuple[int, int]:
    start = random.randint(0, len(content))
    return start, min(len(content), start + random.randint(0, most))


def _flip(random: Random, content: bytes) -> bytes:
    if not content:
        return b"\0"
    at = random.randrange(len(content))
    return content[:at] + bytes([content[at] ^ (1 << random.randrange(8))]) + content[at + 1 :]


def _cut(random: Random, content: bytes) -> bytes:
    start, end = _range(random, content)
    return content[:start] + content[end:]


def _truncate(random: Random, content: bytes) -> bytes:
    return content[: random.randint(0, len(content))]


def _repeat(random: Random, content: bytes) -> bytes:
    start, end = _range(random, content)
    return content[:end] + content[start:end] * random.choice((1, 2, 300)) + content[end:]


def _move(random: Random, content: bytes) -> bytes:
    start, end = _range(random, content)
    to, _ = _range(random, content)
    return content[:to] + content[start:end] + content[to:]


def _noise(random: Random, content: bytes) -> bytes:
    start, end = _range(random, content, 8)
    return content[:start] + random.getrandbits(64).to_bytes(8, "little")[: random.randint(1, 8)] + content[end:]


def _word(random: Random, content: bytes) -> bytes:
    start, end = _range(random, content, 4)
    return content[:start] + random.choice(_WORDS) + content[end:]


def _number(random: Random, content: bytes) -> bytes:
    """An integer of 1 to 8 bytes in place of as many."""
    size = random.choice((1, 2, 4, 8))
    start = random.randint(0, len(content))
    written = (random.choice(_NUMBERS) % (1 << 8 * size)).to_bytes(size, random.choice(("little", "big")))
    return content[:start] + written + content[start + size :]


def _json(random: Random, content: bytes) -> bytes:
    """Another value, key or order in JSON, or in a line of JSON lines; other files get a word."""
    lines = content.split(b"\n")
    at = random.randrange(len(lines)) if lines[0].endswith((b"}", b"]")) else -1
    try:
        document = [json.loads(content if at < 0 else lines[at])]
    except (ValueError, RecursionError):
        return _word(random, content)
    places = list(_places(document))
    inside, key = places[random.randrange(len(places))]
    way = random.randrange(5)
    if way == 0 and inside is not document:
        del inside[key]
    elif way == 1:
        other, name = places[random.randrange(len(places))]
        inside[key] = json.loads(json.dumps(other[name]))
    elif way == 2 and isinstance(inside, dict):
        inside[random.choice((*inside, "", _HOSTILE, "schema"))] = inside.pop(key)
    elif way == 3:
        inside[key] = [inside[key]] * random.choice((1, 2, 30))
    else:
        inside[key] = random.choice(_VALUES)()
    written = json.dumps(document[0]).encode()
    return written if at < 0 else b"\n".join((*lines[:at], written, *lines[at + 1 :]))


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    """(container, key or index) of each value in a document, from the outside in."""
    rest = [value]
    for one in rest:
        for key, inner in one.items() if isinstance(one, dict) else enumerate(one):
            yield one, key
            if isinstance(inner, dict | list):
                rest.append(inner)


_CHANGES: tuple[Change, ...] = (
    _flip,
    _cut,
    _truncate,
    _repeat,
    _move,
    _noise,
    _word,
    _number,
    _json,
    _json,
    _json,
    _json,
    _json,
)
