"""What esprof says of traces that other projects have published, and of small ones in the tests: one JSON line a figure, and
with --write the table of docs/results/public-traces.md.

    python -m benchmarks.public_traces FOLDER [--write docs/results/public-traces.md]

FOLDER holds the published traces under the names of `TRACES`; those that it lacks are left out of the table. The answers
depend on the traces alone, not on the machine.
"""

import argparse
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import esprof
from benchmarks.figures import show, table
from benchmarks.sections import write_sections
from esprof.analyzers import diagnose
from esprof.analyzers.finding import Diagnosis, Finding
from esprof.core import readable
from esprof.core.errors import InputError
from esprof.core.types import ns

OWN = Path(__file__).parents[1] / "tests" / "integration" / "data"
COLUMNS = ("trace", "job", ">steps", ">step", ">unexplained %", "first finding", "as known")

LATE = ("ESP201", "ESP202", "ESP203", "ESP205", "ESP206")
"""Findings of a late rank."""


@dataclass(frozen=True)
class Trace:
    """A trace, or a folder of those of one job."""

    name: str
    """Its path in the folder, or among the tests' data."""
    job: str
    causes: Mapping[str, frozenset[int] | None] = field(default_factory=dict)
    """Id of a finding that is right as the first -> the ranks to which it must be limited; None if any will do. Empty where
    no cause is known."""
    is_own: bool = False
    """Whether esprof's own benchmarks recorded it; it lies among the tests' data."""

    def is_right(self, finding: Finding | None) -> bool:
        if finding is None or finding.id not in self.causes:
            return False
        ranks = self.causes[finding.id]
        return ranks is None or ranks >= {*finding.ranks}


RANK_2 = dict.fromkeys(LATE, frozenset({2}))
MEGATRON = {**dict.fromkeys(LATE, frozenset({0, 6})), "ESP404": None}
TRACES = (
    Trace("megatron-tp8", "Megatron, tensor parallel, 8 × A100", MEGATRON),
    Trace("torchrec-4xv100/sleep_after_backward", "DLRM, all-to-all, 4 × V100", RANK_2),
    Trace("torchrec-4xv100/long_a2a_1", "the same", RANK_2),
    Trace("torchrec-4xv100/long_a2a_3", "the same", RANK_2),
    Trace("torchrec-4xv100/long_a2a_5", "the same", RANK_2),
    Trace("torchrec-4xv100/long_a2a_5_qcomm", "the same, quantised", RANK_2),
    Trace("dataloader-w0", "ResNet50, V100", {"ESP101": None}),
    Trace("hta/df_index_resolver.json.gz", "DDP, one of two ranks, V100"),
    Trace("hta/nccl_data.json.gz", "ResNet, DDP, one of two ranks, A100"),
    Trace("hta/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", "ResNet, V100", {"ESP704": None}),
    Trace("h100/train.json.gz", "small kernels, H100", {"ESP408": None}, is_own=True),
    Trace("h100/streams.json.gz", "several streams, H100", is_own=True),
    Trace("h100/graphed.json.gz", "CUDA graph, H100", is_own=True),
    Trace("h100/ranks", "DDP over gloo, ranks that share an H100", is_own=True),
    Trace("h100/flash_attention.json.gz", "one call of attention, H100", is_own=True),
    Trace("h100/efficient_attention.json.gz", "the same", is_own=True),
    Trace("h100/cudnn_attention.json.gz", "the same", is_own=True),
    Trace("h100/math_attention.json.gz", "the same", is_own=True),
    Trace("jax.xplane.pb.gz", "JAX on a CPU", is_own=True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--write", type=Path)
    options = parser.parse_args()
    rows = table(COLUMNS, rows_of(TRACES, options.folder))
    if options.write:
        write_sections(options.write, {"traces": rows})
        print(f"Wrote {options.write}", file=sys.stderr)


def rows_of(traces: Sequence[Trace], folder: Path) -> Iterator[tuple[str, ...]]:
    """A row for each trace that is there; prints the figures over all of them."""
    opened = unexplained = right = known = 0
    found = [one for one in traces if ((OWN if one.is_own else folder) / one.name).exists()]
    for one in found:
        try:
            diagnosis = diagnose(esprof.load((OWN if one.is_own else folder) / one.name))
        except InputError as refused:
            yield one.name, one.job, "", "", "", f"not read: {refused}", ""
            continue
        opened += 1
        row = _row(one, diagnosis)
        unexplained += diagnosis.explained_pct is not None and 100 - diagnosis.explained_pct > MOST_UNEXPLAINED_PCT
        known += bool(one.causes)
        right += one.is_right(_first(diagnosis))
        yield row
    show("public_traces_opened", opened, "traces", {"of": len(found)})
    show("public_traces_unexplained", unexplained, "traces", {"of": opened, "more_than_pct": MOST_UNEXPLAINED_PCT})
    show("public_traces_first_as_known", right, "traces", {"of": known})


MOST_UNEXPLAINED_PCT = 10
"""Share of the critical path without an explanation above which a trace is counted."""


def _row(one: Trace, diagnosis: Diagnosis) -> tuple[str, ...]:
    first, unit = _first(diagnosis), "" if diagnosis.unit == "step" else f" {diagnosis.unit}s"
    step = "" if diagnosis.step_us is None else readable.duration(ns(diagnosis.step_us))
    explained = diagnosis.explained_pct
    return (
        one.name,
        one.job,
        f"{len(diagnosis.steps)}{unit}",
        step,
        "no replay" if explained is None else f"{100 - explained:.1f}",
        _sentence(first, diagnosis),
        ("yes" if one.is_right(first) else "**no**") if one.causes else "",
    )


def _first(diagnosis: Diagnosis) -> Finding | None:
    return diagnosis.findings[0] if diagnosis.findings else None


def _sentence(first: Finding | None, diagnosis: Diagnosis) -> str:
    """The first finding with its saving, or the verdict where there is none."""
    if first is None:
        return diagnosis.verdict.replace("|", "\\|")
    saving = f" ({first.saving_pct:.0f} %)" if first.saving_us else ""
    return f"{first.id}: {first.title}{saving}".replace("|", "\\|")


if __name__ == "__main__":
    main()
