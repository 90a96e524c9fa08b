"""The pages on the Run directory: its files, the columns of its tables, and the fields of its logs."""

import ast
import inspect
import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from types import ModuleType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import msgspec

from esprof.run import files, logs, schema

TABLES = (
    "EVENTS",
    "STEPS",
    "STAGES",
    "ACCESSES",
    "MEMORY",
    "ALLOCATIONS",
    "MODULES",
    "SAMPLES",
    "STACKS",
)
OF_TRAINING = ("LABELS", "TRAVELS")
"""Tables on a page of their own."""
LOGS: dict[str, tuple[type[msgspec.Struct], ...]] = {
    "HISTORY": (logs.JobEvent, logs.Setting),
    "ROUNDS": (logs.Round,),
    "LIVE": (logs.LiveStep,),
    "LEDGER": (logs.ReplayPrediction, logs.ObservedOutcome, logs.JobClass, logs.Estimate),
}
"""Constant of `esprof.run.files` -> the structs of the log's lines, and those in their fields."""
VALUES = {"HISTORY": "EventKind", "ROUNDS": "RoundOutcome"}
"""Log -> the type whose docstring explains its values."""
UNITS = {"_ns": "ns", "_us": "µs", "_pct": "%", "_bytes": "bytes"}
"""Ending of a name -> unit."""
NAMED_UNITS = {"us": "µs", **dict.fromkeys(("allocated", "reserved", "peak_allocated", "rss", "bytes"), "bytes")}
"""Name without such an ending -> unit."""
PLAIN_TYPES = {str: "text", int: "integer", float: "number", bool: "true or false"}
MEMBER = re.compile(r"^- ((?:`\w+`(?:, )?)+): (.*)", re.DOTALL)


def file_list() -> str:
    """Every file of a Run as a table, from the docstring of `esprof.run.files`."""
    text = files.__doc__ or ""
    rows, after = _run_files(text)
    intro = text.split("\n===")[0].split("\n\n", 1)[1].strip()
    return "\n".join(
        [
            "# The Run directory",
            "",
            intro,
            "",
            "| file | written by | content |",
            "|---|---|---|",
            *(f"| {' | '.join(row)} |" for row in rows),
            "",
            "[Tables](tables.md) and [labels and scores](tables-training.md) list the columns of the Parquet files,",
            "[Logs](logs.md) the fields of the `.jsonl` files.",
            "",
            after,
            "",
        ]
    )


def tables(title: str = "Tables of a Run", names: Sequence[str] = TABLES) -> str:
    """The columns of these Parquet tables, from the schemas and their docstrings."""
    docs = _docstrings(schema)
    sections = [
        f"# {title}",
        "",
        "Each folder has one Parquet file per rank, `rank-00000.parquet`. Names that end in `_ns` are nanoseconds. A column",
        "without a value is null.",
    ]
    for constant in names:
        name = f"{constant.lower()}/"
        columns = getattr(schema, constant)
        prose, meanings = _split(docs[constant], set(columns.names))
        sections += ["", f"## {name}", "", f"Written by: {_row(name)[1]}.", ""]
        sections += [
            _sentence(prose.removeprefix(f"`{name}`: ")),
            "",
            "| column | type | unit | meaning |",
            "|---|---|---|---|",
        ]
        for column in columns:
            cells = (f"`{column.name}`", _arrow_type(column.type), _unit(column.name), _sentence(meanings[column.name]))
            sections.append(f"| {' | '.join(cells)} |")
    return "\n".join([*sections, ""])


def log_fields() -> str:
    """The fields of each log's lines, from the structs and the docstrings of their fields."""
    docs = _docstrings(logs)
    sections = [
        "# Logs of a Run",
        "",
        "A log has one JSON object per line. Times that end in `_ns` are nanoseconds, times in `_us` microseconds. Optional",
        "fields may be absent or null.",
    ]
    for constant, structs in LOGS.items():
        name = getattr(files, constant)
        sections += ["", f"## {name}", "", f"Written by: {_row(name)[1]}.", "", docs.get(constant, _row(name)[2])]
        sections += ["", _sentence(docs[VALUES[constant]])] if constant in VALUES else []
        for struct in structs:
            sections += ["", f"### {struct.__name__}", "", _sentence(struct.__doc__ or ""), *_field_table(struct, docs)]
    return "\n".join([*sections, ""])


def _field_table(struct: type[msgspec.Struct], docs: dict[str, str]) -> Iterator[str]:
    yield from ("", "| field | type | unit | meaning |", "|---|---|---|---|")
    tag = struct.__struct_config__
    if tag.tag_field:
        yield f"| `{tag.tag_field}` | `{tag.tag}` | | Kind of the line. |"
    for field in msgspec.structs.fields(struct):
        key = f"{struct.__name__}.{field.name}"
        meaning = _sentence(" ".join(docs[key].split())) if key in docs else ""
        cells = (f"`{field.encode_name}`", _type(field.type, optional=not field.required), _unit(field.name), meaning)
        yield f"| {' | '.join(cells)} |"


def _type(of: Any, *, optional: bool = False) -> str:
    """A type of Python as a reader of the JSON sees it."""
    origin, of_what = get_origin(of), get_args(of)
    if origin in (Union, UnionType):
        (inner,) = (one for one in of_what if one is not type(None))
        return _type(inner, optional=True)
    if origin is Annotated:
        return _type(of_what[0], optional=optional)
    if origin is Literal:
        text = ", ".join(f"`{value}`" for value in of_what)
    elif origin is tuple and of_what[-1] is ...:
        text = f"list of {_type(of_what[0])}"
    elif origin is dict:
        text = f"object: {_type(of_what[0])} to {_type(of_what[1])}"
    else:
        text = PLAIN_TYPES.get(of) or f"`{of.__name__}`"
    return f"{text} (optional)" if optional else text


def _unit(name: str) -> str:
    return NAMED_UNITS.get(name) or next((unit for ending, unit in UNITS.items() if name.endswith(ending)), "")


def _arrow_type(of: object) -> str:
    """An Arrow type as a reader of the table sees it: texts are stored as dictionaries."""
    return "text" if str(of).startswith("dictionary") else str(of)


def _split(doc: str, columns: set[str]) -> tuple[str, dict[str, str]]:
    """The prose of a docstring, and the meaning of each column, which is a point of a list in it."""
    meanings: dict[str, str] = {}
    prose: list[str] = []
    after_point = False
    for point in re.split(r"\n(?=- )|\n\n", doc):
        is_point, member = point.startswith("- "), MEMBER.match(point)
        names = re.findall(r"`(\w+)`", member[1]) if member else []
        if member and set(names) <= columns:
            meanings |= dict.fromkeys(names, " ".join(member[2].split()))
        else:
            prose.append(point if is_point and after_point else f"\n{point}")
        after_point = is_point
    return "\n".join(prose).strip(), meanings


def _docstrings(module: ModuleType) -> dict[str, str]:
    """The strings that follow constants and fields of a module, by `NAME` or `Class.field`."""
    tree = ast.parse(inspect.getsource(module))
    found = dict(_documented(tree.body, ""))
    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            found |= _documented(node.body, f"{node.name}.")
    return found


def _documented(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, str]]:
    for above, node in pairwise(body):
        is_text = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        if not is_text or not isinstance(above, ast.Assign | ast.AnnAssign):
            continue
        target = above.target if isinstance(above, ast.AnnAssign) else above.targets[0]
        yield prefix + ast.unparse(target), inspect.cleandoc(node.value.value)


def _sentence(text: str) -> str:
    """A docstring's text as a sentence, with the words of JSON and the values of the constants that it names."""
    text = text.replace("`KINDS`", ", ".join(f"`{kind}`" for kind in schema.KINDS))
    text = re.sub(r"\bNone\b", "null", text).rstrip(";.")
    return f"{text[:1].upper()}{text[1:]}."


def _row(name: str) -> list[str]:
    """A file, who writes it, and its content, as the table of files says."""
    rows, _ = _run_files(files.__doc__ or "")
    return next(row for row in rows if row[0].strip("`").startswith(name))


def _run_files(text: str) -> tuple[list[list[str]], str]:
    """Rows of the table in a docstring, and the text that follows; an indented line continues the row above."""
    lines = text.splitlines()
    first, second, last = (at for at, line in enumerate(lines) if line.startswith("==="))
    starts = [at for at, char in enumerate(lines[first]) if char == "=" and lines[first][at - 1 : at] != "="]
    rows: list[list[str]] = []
    for line in lines[second + 1 : last]:
        cells = [line[start:end].strip() for start, end in zip(starts, [*starts[1:], None], strict=True)]
        if cells[0]:
            rows.append(cells)
        else:
            rows[-1] = [f"{above} {more}".strip() for above, more in zip(rows[-1], cells, strict=True)]
    return rows, "\n".join(lines[last + 1 :]).strip()
