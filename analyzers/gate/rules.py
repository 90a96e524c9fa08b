"""The rules of the gate: which metric may get worse, and by how much."""

import re

import msgspec

from esprof.core.errors import UsageError
from esprof.core.types import NS_PER_MS, NS_PER_S, NS_PER_US


class Metric(msgspec.Struct, frozen=True):
    """A metric of steps. `worse` is +1 if larger values are worse, -1 if smaller ones are (a rate); one `unit` is `scale`
    units of the samples."""

    worse: int
    unit: str
    scale: float
    limits: dict[str, float]
    """Absolute units that a rule may use, and the size of each in units of the samples."""

    @property
    def is_rate(self) -> bool:
        return self.worse < 0


_TIME_LIMITS: dict[str, float] = {"us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}

METRICS = {
    "step_time": Metric(+1, "us", NS_PER_US, _TIME_LIMITS),
    "loader_wait": Metric(+1, "us", NS_PER_US, _TIME_LIMITS),
    "cpu_wait": Metric(+1, "us", NS_PER_US, _TIME_LIMITS),
    "samples_per_s": Metric(-1, "1/s", 1, {}),
    "tokens_per_s": Metric(-1, "1/s", 1, {}),
}

MAX_RUNS = 20
"""Most runs of a baseline: the latest are retained, so that it follows the machine."""

_RULE = re.compile(r"(?P<metric>\w+):(?P<sign>[+-]?)(?P<limit>\d+(?:\.\d+)?)(?P<unit>%|[a-z]+)")


class GateRule(msgspec.Struct, frozen=True):
    """`metric` may get worse by at most `limit` of `unit` (`%` of the baseline's median or mean, or an absolute unit)."""

    metric: str
    limit: float
    unit: str

    def __str__(self) -> str:
        return f"{self.metric}:{'+' if METRICS[self.metric].worse > 0 else '-'}{self.limit:g}{self.unit}"


def parse_rule(text: str) -> GateRule:
    """Parse `METRIC:+5%` or `METRIC:+3ms`. Raises UsageError with the accepted forms."""
    match = _RULE.fullmatch(text.strip())
    if match is None:
        raise UsageError(
            f"rule {text!r} is not METRIC:LIMIT", remedy="Write for example step_time:+5% or step_time:+3ms."
        )
    name, sign, unit = match["metric"], match["sign"], match["unit"]
    if name not in METRICS:
        raise UsageError(f"unknown metric {name!r}", remedy=f"Known metrics: {', '.join(METRICS)}.")
    metric = METRICS[name]
    if unit != "%" and unit not in metric.limits:
        raise UsageError(f"{name} has no unit {unit!r}", remedy=f"Known units: {', '.join(['%', *metric.limits])}.")
    rule = GateRule(name, float(match["limit"]), unit)
    if sign and (sign == "+") != (metric.worse > 0):
        raise UsageError(f"rule {text!r} would fail on an improvement", remedy=f"Write {rule}.")
    return rule
