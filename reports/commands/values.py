"""Values of options: finite numbers, times and sizes."""

import math
import re
from typing import Any

import click

_SECONDS = {"s": 1.0, "min": 60.0, "h": 3600.0}
_BYTES = {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}
_NUMBER = r"\d{1,12}"
"""Bounded, since Python refuses to convert very many digits."""


class Finite(click.FloatRange):
    """A range of finite numbers. click.FloatRange accepts NaN, since NaN compares false with every bound."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        number: float = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value!r} is not a finite number", param, ctx)
        return number


class StepsOrTime(click.ParamType):  # type: ignore[type-arg]  # Not generic in click 8.1.
    """`200`: steps. `30s`, `10min`, `2h`: wall time. Becomes (steps, seconds), of which one is 0."""

    name = "STEPS|TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[int, float]:
        match = re.fullmatch(rf"({_NUMBER})(s|min|h)?", str(value))
        if match is None or not int(match[1]):
            self.fail(f"{value!r} is neither a number of steps nor a time such as 30s, 10min or 2h", param, ctx)
        number = int(match[1])
        return (0, number * _SECONDS[match[2]]) if match[2] else (number, 0.0)


class Duration(click.ParamType):  # type: ignore[type-arg]
    """`120`, `120s`, `2min`, `1h`: seconds, from 1 s to a day."""

    name = "TIME"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        match = re.fullmatch(rf"({_NUMBER}(?:\.{_NUMBER})?)(s|min|h)?", str(value))
        seconds = float(match[1]) * _SECONDS[match[2] or "s"] if match else 0.0
        if not 1 <= seconds <= 86_400:
            self.fail(f"{value!r} is not a time from 1 s to 24 h, such as 120, 2min or 1h", param, ctx)
        return seconds


class Size(click.ParamType):  # type: ignore[type-arg]
    """`64M`: bytes, in powers of 1024."""

    name = "SIZE"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        match = re.fullmatch(rf"({_NUMBER})([KMG])", str(value))
        if match is None or not int(match[1]):
            self.fail(f"{value!r} is not a size such as 64M or 2G", param, ctx)
        return int(match[1]) * _BYTES[match[2]]
