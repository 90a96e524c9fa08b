"""JSON text in memory, eight bytes at a time: where strings, numbers and other values end.

Everything is an address, nothing an array: numba counts the references to an array in each function that it passes
through, which takes longer than reading a row. Text must be followed by PADDING zero bytes: a zero ends every loop here,
since no JSON holds one, and a word may be read across the end. Words are taken to be little-endian.
"""

from collections.abc import Callable
from typing import Any, cast

from numba import types
from numba.extending import intrinsic

from esprof.core.compiled import compiled

PADDING = 16
BROKEN = -1
"""Returned instead of an address where the text is no JSON."""

QUOTE, BACKSLASH, COMMA, COLON = b'"\\,:'
OBJECT, OBJECT_END, LIST, LIST_END = b"{}[]"
_TAB, _NEWLINE, _RETURN, _SPACE = b"\t\n\r "
_MINUS, _PLUS, _POINT, _ZERO, _NINE, _EXPONENT = b"-+.09e"
_LOWER = 0x20
"""Makes an ASCII letter lower case when or-ed to it."""

_NULL, _TRUE, _FALSE = (int.from_bytes(four, "little") for four in (b"null", b"true", b"alse"))
_FOUR_BYTES = 0xFFFFFFFF

_EACH = 0x0101010101010101
_LOW_BITS = 0x7F * _EACH
_HIGH_BITS = -0x7F7F7F7F7F7F7F80
"""The highest bit of each byte, as the signed number that a word is."""
_QUOTES, _BACKSLASHES, _SPACES, _ZEROS = (each * _EACH for each in (QUOTE, BACKSLASH, _SPACE, _ZERO))
_ABOVE_NINE = (0x80 - 10) * _EACH
_HASH_FACTOR = -7046029254386353131


def _load(width: types.Type) -> Callable[..., Any]:
    def generate(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        pointer = builder.inttoptr(args[0], context.get_value_type(width).as_pointer())
        return builder.zext(builder.load(pointer, align=1), context.get_value_type(types.int64))

    return generate


def _store(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    builder.store(args[1], builder.inttoptr(args[0], context.get_value_type(types.int64).as_pointer()), align=1)
    return context.get_dummy_value()


def _count_trailing_zeros(context: Any, builder: Any, signature: Any, args: Any) -> Any:
    return builder.cttz(args[0], context.get_constant(types.boolean, False))


def _instruction(generate: Callable[..., Any]) -> Callable[[int], int]:
    """A function of one int64 that numba compiles to the instructions that `generate` builds."""

    def typed(context: Any, operand: Any) -> Any:
        return types.int64(types.int64), generate

    return cast("Callable[[int], int]", intrinsic(typed))


byte = _instruction(_load(types.uint8))
"""The byte at an address."""
word = _instruction(_load(types.int64))
"""The eight bytes at an address, the first of them lowest."""
_trailing_zeros = _instruction(_count_trailing_zeros)
"""Number of zero bits below the lowest bit that is set; 64 where none is set."""


def _typed_store(context: Any, at: Any, value: Any) -> Any:
    return types.void(types.int64, types.int64), _store


put = cast("Callable[[int, int], None]", intrinsic(_typed_store))
"""Write a word to an address."""


@compiled
def after_space(at: int) -> int:
    """The address of the first byte from here on that is no white space."""
    while byte(at) == _SPACE or byte(at) == _NEWLINE or byte(at) == _RETURN or byte(at) == _TAB:
        at += 1
    return at


@compiled
def string_end(at: int) -> int:
    """The address behind the string whose opening quote stands here."""
    at += 1
    while True:
        eight = word(at)
        quotes, backslashes = eight ^ _QUOTES, eight ^ _BACKSLASHES
        # Sets the high bit of each byte that is a quote, a backslash or a control character. Borrows make it wrong beyond
        # the first of them, which alone is used.
        ends = (quotes - _EACH) & ~quotes | (backslashes - _EACH) & ~backslashes | (eight - _SPACES) & ~eight
        ends &= _HIGH_BITS
        if not ends:
            at += 8
            continue
        at += _trailing_zeros(ends) >> 3
        if byte(at) == QUOTE:
            return at + 1
        if byte(at) != BACKSLASH:
            return BROKEN
        at += 2


@compiled
def value_end(at: int) -> int:
    """The address behind the value that begins here. Within objects and lists only strings and brackets are looked at."""
    first = byte(at)
    if first == QUOTE:
        return string_end(at)
    if first in (OBJECT, LIST):
        return _nested_end(at)
    if _is_numeric(first):
        return _number_end(at)
    if word(at) & _FOUR_BYTES == _NULL or word(at) & _FOUR_BYTES == _TRUE:
        return at + 4
    if first == ord("f") and word(at + 1) & _FOUR_BYTES == _FALSE:
        return at + 5
    return BROKEN


@compiled
def is_null(at: int) -> bool:
    return word(at) & _FOUR_BYTES == _NULL


@compiled
def _is_numeric(first: int) -> bool:
    return first == _MINUS or _ZERO <= first <= _NINE


@compiled
def _nested_end(at: int) -> int:
    depth = 0
    while byte(at):
        here = byte(at)
        if here == QUOTE:
            at = string_end(at)
            if at == BROKEN:
                return BROKEN
            continue
        at += 1
        if here in (OBJECT, LIST):
            depth += 1
        elif here in (OBJECT_END, LIST_END):
            depth -= 1
            if depth == 0:
                return at
    return BROKEN


@compiled
def _number_end(at: int) -> int:
    whole = at + (byte(at) == _MINUS)
    at = _digits_end(whole)
    if at == whole or (byte(whole) == _ZERO and at > whole + 1):
        return BROKEN
    if byte(at) == _POINT:
        decimals = at + 1
        at = _digits_end(decimals)
        if at == decimals:
            return BROKEN
    if byte(at) | _LOWER == _EXPONENT:
        at += 1 + (byte(at + 1) == _MINUS or byte(at + 1) == _PLUS)
        exponent = at
        at = _digits_end(exponent)
        if at == exponent:
            return BROKEN
    return at


@compiled
def _digits_end(at: int) -> int:
    while _ZERO <= byte(at) <= _NINE:
        at += 1
    return at


@compiled
def short_integer(at: int) -> tuple[int, int]:
    """The integer here and the address behind it, or BROKEN: it has more than 18 digits, or it is no plain integer."""
    digits = at + (byte(at) == _MINUS)
    value, end = _digits(digits)
    if not _is_whole(digits, end, 18) or byte(end) == _POINT or byte(end) | _LOWER == _EXPONENT:
        return 0, BROKEN
    return (-value if digits > at else value), end


@compiled
def thousandths(at: int) -> tuple[int, int]:
    """A thousand times the number here and the address behind it, or BROKEN: it has more than 15 digits before the point
    (or 16, up to nine quadrillions), more than three behind, or an exponent."""
    digits = at + (byte(at) == _MINUS)
    value, end = _digits(digits)
    if not _is_whole(digits, end, 16) or value > 9_000_000_000_000_000:
        return 0, BROKEN
    value *= 1000
    if byte(end) == _POINT:
        point = end
        part, end = _digits(point + 1)
        places = end - point - 1
        if not 1 <= places <= 3:
            return 0, BROKEN
        value += part * (100 if places == 1 else 10 if places == 2 else 1)
    if byte(end) | _LOWER == _EXPONENT:
        return 0, BROKEN
    return (-value if digits > at else value), end


@compiled
def _is_whole(begin: int, end: int, most: int) -> bool:
    """Whether these digits are the whole part of a JSON number that has no more than `most`."""
    return begin < end <= begin + most and (byte(begin) != _ZERO or end == begin + 1)


@compiled
def _digits(at: int) -> tuple[int, int]:
    """The number that the digits here make (0 where there are none) and the address behind them; wrong for more than 18
    digits."""
    value = 0
    while True:
        eight = word(at)
        # Sets the high bit of each byte that is no digit.
        others = eight ^ _ZEROS
        others = ((others & _LOW_BITS) + _ABOVE_NINE | others) & _HIGH_BITS
        count = _trailing_zeros(others) >> 3  # 8 where all are digits
        if count == 0:
            return value, at
        if value:
            for _ in range(count):
                value *= 10
        value += _eight_digits(eight << (64 - 8 * count))
        at += count
        if count < 8:
            return value, at


@compiled
def _eight_digits(eight: int) -> int:
    """The number that eight digits make, zero bytes before them counting as none: neighbours are joined pair by pair."""
    eight = (eight & 0x0F * _EACH) * (10 << 8 | 1) >> 8
    eight = (eight & 0x00FF00FF00FF00FF) * (100 << 16 | 1) >> 16
    return (eight & 0x0000FFFF0000FFFF) * (10_000 << 32 | 1) >> 32


@compiled
def hash_of(at: int, end: int) -> int:
    """A hash of the bytes from `at` to `end`."""
    mixed = end - at
    while at < end:
        mixed = (mixed ^ _first_bytes(word(at), end - at)) * _HASH_FACTOR
        mixed ^= mixed >> 32
        at += 8
    return mixed


@compiled
def are_same(one: int, other: int, length: int) -> bool:
    """Whether the `length` bytes at two addresses are equal."""
    while length > 0:
        if _first_bytes(word(one) ^ word(other), length):
            return False
        one += 8
        other += 8
        length -= 8
    return True


@compiled
def _first_bytes(eight: int, count: int) -> int:
    return eight if count >= 8 else eight & (1 << 8 * count) - 1
