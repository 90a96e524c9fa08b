"""Write the pages of docs/ that are made from the code; with --check, fail where they differ from it.

Run as `python -m docs.generate`: Python then takes the code of the checkout that it stands in.
"""

import json
import sys
import textwrap
import tomllib
from datetime import date
from pathlib import Path

import click
import msgspec

from esprof.analyzers.findings import PAGES, RULES
from esprof.analyzers.ignore import parse
from esprof.analyzers.rule import FAMILIES, Page
from esprof.cli import root
from esprof.core.plan import Plan
from esprof.recorder.knobs import KNOBS
from esprof.replay.whatif.terms import TERMS
from esprof.run import files, schema
from esprof.verbs import VERBS

DOCS = Path(__file__).parent
WIDTH = 120
KNOBS_END = "<!-- end of the knobs -->"
NOTE = "<!-- Written by `make docs` from the code. -->\n"


def commands() -> str:
    """Each verb's own help, as the terminal shows it."""
    context = click.Context(root, info_name="esprof", terminal_width=100)
    sections = {"esprof": root.get_help(context)}
    for name in VERBS:
        sections |= _helps(root.get_command(context, name), context, name)
    return "\n".join(
        [NOTE, "# Commands", *(f"\n## {name}\n\n```text\n{text}\n```" for name, text in sections.items()), ""]
    )


def _helps(command: click.Command | None, parent: click.Context, name: str) -> dict[str, str]:
    """The help of a verb, and of those within it where it is a group of them."""
    assert command is not None, name
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100)
    found = {context.command_path: command.get_help(context)}
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found |= _helps(command.get_command(context, inner), context, inner)
    return found


def findings() -> str:
    """The catalogue, family by family."""
    intro = (
        "Ids are stable. `esprof explain ID` shows the same page in the terminal. Savings come from replay. Savings of "
        "recurring slow steps (ESP601, ESP806) are measured on all steps of the run instead."
    )
    parts = [NOTE, "# Findings\n", _wrapped(intro), _ignoring()]
    for digit, family in FAMILIES.items():
        pages = [_page(page) for page in PAGES.values() if page.family == family]
        parts += [f"\n## ESP{digit}xx: {family}", *pages] if pages else []
    return "\n".join([*parts, ""])


def _ignoring() -> str:
    """How findings are ignored. What it shows is read here, so that it is no other than what esprof understands."""
    example = """[[tool.esprof.ignore]]
id = "ESP301"
reason = "the link is upgraded in May"
until = 2027-05-31
ranks = [3]  # optional
"""
    entries = tomllib.loads(example)["tool"]["esprof"]["ignore"]
    (entry,) = parse(entries, Path("pyproject.toml"), date(2027, 5, 31)).entries
    stopping = ", ".join(page.id for rule in RULES if rule.stops_the_job for page in rule.pages)
    return (
        "\n## Ignoring a finding\n\nName a finding that you accept for now in `pyproject.toml`, with a reason and a "
        f"last day:\n\n```toml\n{example}```\n\n"
        + _wrapped(
            "`esprof diagnose`, `esprof report` and the verdict of `esprof record` then leave such findings out of the list "
            "and the verdict, and list them separately with id, price, reason and last day (`ignored` in JSON). "
            f"{entry.id} is ignored here up to and including the day of `until`; afterwards it counts again, with a "
            "warning. With `ranks`, only findings that name no other ranks are ignored. The file is the nearest from the "
            "current directory upwards that has a table `[tool.esprof]`; `--no-ignore` skips it. Findings that stop the "
            f"job ({stopping}) cannot be ignored, and an invalid entry is an error."
        )
    )


def _page(page: Page) -> str:
    points = {"Evidence": page.evidence, "Price": page.price, "Remedy": page.remedy}
    listed = "\n".join(_point(f"**{label}.** {text}") for label, text in points.items())
    return f"\n### {page.id}: {page.title}\n\n{_wrapped(page.meaning)}\n\n{listed}"


def _point(text: str) -> str:
    """A point of a list."""
    return _wrapped(f"- {text}", indent="  ")


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def what_ifs() -> str:
    """Every kind of what-if term, in the order in which the terms of a scenario are applied."""
    intro = (
        "A scenario is one or more terms, separated by commas; all of them apply at once. A comma inside brackets belongs "
        "to the term. Some terms take a scope before their name, which limits them to some ranks: `rank3.`, "
        "`rank0-3+6.`, or `device[NAME].`, where NAME is part of the device's name. "
        "A term is declined, with the reason, if the run lacks the evidence for it."
    )
    parts = [NOTE, "# What-ifs\n", _wrapped(intro)]
    for kind in TERMS.values():
        written = ", ".join(f"`{example}`" for example in kind.examples)
        points = [_point(f"**Syntax.** {written}"), _point(f"**Needs.** {kind.needs}")]
        points += [_point(f"**Assumes.** {kind.assumes}")] if kind.assumes else []
        parts += [f"\n## {kind.name}\n\n{_wrapped(kind.meaning)}\n", *points]
    return "\n".join([*parts, ""])


def verify() -> str:
    """The page on `esprof verify` as it is, with the table of knobs in its place."""
    rows = [
        f"| `{knob.name}={knob.example}`{'' if knob.is_term else ' (by `--set` alone)'} | {knob.sets} | {knob.reads} |"
        for knob in KNOBS.values()
    ]
    table = "\n".join(["| knob | sets | is read back as |", "|---|---|---|", *rows])
    page = (DOCS / "how-to" / "verify.md").read_text(encoding="utf-8")
    before, rest = page.split(NOTE, 1)
    return f"{before}{NOTE}\n{table}\n\n{KNOBS_END}{rest.split(KNOBS_END, 1)[1]}"


def run_directory() -> str:
    """Every file of a Run as a table, from the docstring of `esprof.run.files`, then the columns of each Parquet table."""
    text = files.__doc__ or ""
    rows, after = _run_files(text)
    intro = text.split("\n===")[0].split("\n\n", 1)[1].strip()
    listed = "\n".join(f"| {' | '.join(row)} |" for row in rows)
    parts = [
        NOTE,
        "# The Run directory\n",
        f"{intro}\n",
        "| file | written by | content |",
        "|---|---|---|",
        listed,
        "",
    ]
    parts += [f"{after}\n", "## Columns of the tables\n"]
    parts += ["Names that end in `_ns` are nanoseconds. A column without a value is null.\n"]
    parts += ["| table | column | type |", "|---|---|---|"]
    for name in ("EVENTS", "STEPS", "STAGES", "MEMORY", "SAMPLES", "STACKS"):
        parts += [
            f"| `{name.lower()}/` | `{field.name}` | {_type_name(field.type)} |" for field in getattr(schema, name)
        ]
    return "\n".join([*parts, ""])


def _type_name(of: object) -> str:
    """An Arrow type as a reader of the table sees it: texts are stored as dictionaries."""
    return "text" if str(of).startswith("dictionary") else str(of)


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


def plan_schema() -> str:
    """The JSON Schema of a Plan."""
    schema = msgspec.json.schema(Plan)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"


def main() -> None:
    stale = []
    written = {
        "reference/commands.md": commands(),
        "reference/findings.md": findings(),
        "reference/what-ifs.md": what_ifs(),
        "reference/run-directory.md": run_directory(),
        "how-to/verify.md": verify(),
        "reference/plan.schema.json": plan_schema(),
    }
    for name, text in written.items():
        file = DOCS / name
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in sys.argv[1:]:
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file}")
    if stale and "--check" in sys.argv[1:]:
        sys.exit(f"{', '.join(stale)} in docs/ differ from the code: run `make docs`")


if __name__ == "__main__":
    main()
