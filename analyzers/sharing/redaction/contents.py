"""A Run without the names of its job: paths, hosts, people, modules, operations, kernels, its command and environment.

Times, sizes, shapes, numbers of processes, names of devices and versions of public software stay.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import replace

import msgspec
import pyarrow as pa

from esprof.analyzers.sharing.redaction.flights import redacted_flight
from esprof.analyzers.sharing.redaction.frames import redacted_frame, redacted_stack
from esprof.analyzers.sharing.redaction.hashed import hashed, hashed_group
from esprof.analyzers.sharing.redaction.operations import redacted_operation
from esprof.core.credentials import REDACTED
from esprof.run.collective_names import ITEM_BYTES, collective_word
from esprof.run.groups import Group
from esprof.run.logs import JobEvent, Round
from esprof.run.probes import Probes
from esprof.run.raw.stages import COLLATE, DECODE, ELASTIC_SAVE, GARBAGE_COLLECTION, PINNING, READ, STAGING, TRANSFORM
from esprof.run.run import KnobReading, RankMeta, RunMeta, RunWarning
from esprof.run.schema import Table
from esprof.run.sharing.contents import RunContents

_STAGES = {GARBAGE_COLLECTION, PINNING, COLLATE, DECODE, TRANSFORM, READ, ELASTIC_SAVE}
_SAVE = re.compile(r"(?:torch\.save|torch\.distributed\.checkpoint\.\w+|safetensors\.torch\.\w+)")
_SHAPES = re.compile(r"[\d\s,\[\]-]*")
_BACKENDS = re.compile(r"(?:(?:cpu|cuda|xpu|npu):(?:nccl|gloo|mpi|ucc|hccl|xccl),?)+|nccl|gloo|mpi|ucc|hccl|xccl")
_VERSION = re.compile(r"\d+(?:\.\d+)*(?:(?:a|b|rc|\.dev)\d+)?")
_SOFTWARE = (
    "esprof",
    "python",
    "torch",
    "cuda",
    "cuda_runtime",
    "cudnn",
    "nccl",
    "rccl",
    "hip",
    "rocm",
    "numpy",
    "driver",
)
_PLAIN_VALUE = re.compile(r"[\d.]+|true|false|on|off", re.IGNORECASE)


def redacted_contents(contents: RunContents) -> RunContents:
    """The same Run with hashes for names. Equal names get equal hashes, in every file and every Run."""
    return replace(
        contents,
        meta=_meta(contents.meta),
        tables={(name, rank): _TABLES.get(name, _same)(rows) for (name, rank), rows in contents.tables.items()},
        flights={rank: redacted_flight(log) for rank, log in contents.flights.items()},
        probes=None if contents.probes is None else _probes(contents.probes),
        history=tuple(map(_event, contents.history)),
        rounds=tuple(map(_round, contents.rounds)),
    )


def _meta(meta: RunMeta) -> RunMeta:
    return msgspec.structs.replace(
        meta,
        command=(hashed(REDACTED, " ".join(meta.command)),) if meta.command else (),
        relaunch=None,
        versions=_versions(meta.versions),
        model_signature=_hash("model", meta.model_signature),
        ranks=tuple(map(_rank, meta.ranks)),
        groups=tuple(map(_group, meta.groups)),
        # The text may name files and hosts; code alone has a meaning for rules.
        warnings=tuple(
            RunWarning(one.code, f"the original run has a warning of the kind {one.code}", one.ranks)
            for one in meta.warnings
        ),
    )


def _versions(versions: Mapping[str, str]) -> dict[str, str]:
    """Versions of public software, without the name of a build, such as `+mycompany`."""
    found = {name: _VERSION.match(version) for name, version in versions.items() if name in _SOFTWARE}
    return {name: version[0] for name, version in found.items() if version}


def _rank(meta: RankMeta) -> RankMeta:
    knobs = tuple(KnobReading(name=one.name, value=_value(one.value)) for one in meta.knobs)
    return msgspec.structs.replace(meta, host=_hash("host", meta.host), knobs=knobs)


def _value(value: str | None) -> str | None:
    return value if value is None or _PLAIN_VALUE.fullmatch(value) else hashed("value", value)


def _group(group: Group) -> Group:
    return Group(
        name=hashed_group(group.name),
        ranks=group.ranks,
        backend=group.backend if _BACKENDS.fullmatch(group.backend or "") else None,
        description=_hash("group", group.description),
    )


def _hash(kind: str, name: str | None) -> str | None:
    return None if name is None else hashed(kind, name)


def _probes(probes: Probes) -> Probes:
    """Reasons why something was not measured are texts of the system, and are left out."""
    steps = (
        msgspec.structs.replace(one, setting=hashed("setting", one.setting) if one.setting else "")
        for one in probes.steps
    )
    return msgspec.structs.replace(
        probes,
        command=(hashed(REDACTED, " ".join(probes.command)),) if probes.command else (),
        left_out=tuple(msgspec.structs.replace(one, reason="") for one in probes.left_out),
        conditions=tuple(msgspec.structs.replace(one, unknown=None) for one in probes.conditions),
        steps=tuple(steps),
    )


def _event(event: JobEvent) -> JobEvent:
    return msgspec.structs.replace(event, plan=_hash("plan", event.plan), reason="")


def _round(round_: Round) -> Round:
    return msgspec.structs.replace(round_, plan=_hash("plan", round_.plan), why="")


def _same(rows: Table) -> Table:
    return rows


def _events(rows: Table) -> Table:
    kind, kinds = rows.codes("kind")
    name, names = rows.codes("name")
    # One new name for each pair of name and kind that occurs.
    pairs = {
        pair: redacted_operation(kinds[pair[0]], names[pair[1]])
        for pair in set(zip(kind.tolist(), name.tolist(), strict=True))
        if min(pair) >= 0
    }
    new = [pairs.get(pair) for pair in zip(kind.tolist(), name.tolist(), strict=True)]
    texts: dict[str, Callable[[str], str | None]] = {
        "group": hashed_group,
        "channel": _channel,
        "collective": collective_word,
        "dtype": lambda dtype: dtype if dtype.lower() in ITEM_BYTES else None,
        "shapes": lambda shapes: shapes if _SHAPES.fullmatch(shapes) else None,
    }
    return _with_column(_changed(rows, texts), "name", new)


def _channel(name: str) -> str:
    group, _, tag = name.rpartition("/")
    return f"{hashed_group(group)}/{tag}"


def _stages(rows: Table) -> Table:
    return _changed(rows, {"name": _stage})


def _stage(name: str) -> str:
    plain = name.removesuffix(STAGING)
    if plain in _STAGES or _SAVE.fullmatch(plain):
        return name
    return hashed("stage", plain) + name[len(plain) :]


def _samples(rows: Table) -> Table:
    return _changed(rows, {"stack": redacted_stack})


def _stacks(rows: Table) -> Table:
    def operation(name: str) -> str:
        return redacted_operation("op", name)

    def call(text: str) -> str:
        return text if text == GARBAGE_COLLECTION else redacted_frame(text)

    return _changed(rows, {"before": operation, "after": operation, "frame": redacted_frame, "call": call})


def _modules(rows: Table) -> Table:
    def names(lines: str) -> str:
        return "\n".join(redacted_operation("python", name) for name in lines.splitlines())

    return _changed(rows, {"name": names, "inputs": names, "outputs": names})


_TABLES: dict[str, Callable[[Table], Table]] = {
    "events": _events,
    "modules": _modules,
    "stages": _stages,
    "samples": _samples,
    "stacks": _stacks,
}
"""How a table changes; all others have no text of the job."""


def _changed(rows: Table, rules: Mapping[str, Callable[[str], str | None]]) -> Table:
    """The table with each text of some columns changed by the rule of its column."""
    for column, rule in rules.items():
        codes, texts = rows.codes(column)
        new = [*(rule(text) for text in texts), None]
        rows = _with_column(rows, column, [new[code] for code in codes.tolist()])
    return rows


def _with_column(rows: Table, column: str, texts: list[str | None]) -> Table:
    at = rows.arrow.schema.get_field_index(column)
    encoded = pa.array(texts, pa.string()).dictionary_encode()
    return Table(rows.arrow.set_column(at, rows.arrow.schema.field(column), encoded))
