"""Write the pages of docs/ that are made from the code; with --check, fail where they differ from it.

Run as `python -m docs.generate`: Python then takes the code of the checkout that it stands in.
"""

import json
import re
import sys
import textwrap
import tomllib
from collections.abc import Sequence
from datetime import date
from pathlib import Path

import click
import msgspec

from docs import run_directory
from esprof.analyzers.advisors.cluster.questions.ask import ANSWERS
from esprof.analyzers.findings import PAGES, RULES
from esprof.analyzers.ignore import parse
from esprof.analyzers.rule import FAMILIES, Page
from esprof.cli import root
from esprof.core.plan import Plan
from esprof.recorder.knobs import KNOBS
from esprof.replay.whatif.term import Kind, Loading
from esprof.replay.whatif.terms import TERMS
from esprof.verbs import GROUPS

DOCS = Path(__file__).parent
WIDTH = 120
KNOBS_END = "<!-- end of the knobs -->"
NOTE = "<!-- Written by `make docs` from the code. -->\n"
MAX_LINES = 220
"""Of a page."""
NEEDLESS = (
    "barriers",
    "buffers",
    "loops",
    "small_operations",
    "padding",
    "repeated_calls",
    "unused_gradients",
    "double_precision",
)
"""What-if terms on work that a job does without need."""
ON_PIPELINES = ("pipeline", "stages", "microbatches")
"""Names of the what-if terms that change a recorded pipeline."""


def commands() -> dict[str, str]:
    """The help of every verb as the terminal shows it, on a page for each group of verbs, and an index."""
    context = click.Context(root, info_name="esprof", terminal_width=100, **root.context_settings)
    index = [NOTE, "# Commands\n", "```text", root.get_help(context).split("\n\nRecord:")[0], "```"]
    pages = {}
    for group, verbs in GROUPS.items():
        file = f"{_slug(group)}.md"
        sections: dict[str, str] = {}
        index += [f"\n## {group}\n", "| command | purpose |", "|---|---|"]
        for name, summary in verbs.items():
            sections |= _helps(root.get_command(context, name), context, name)
            index.append(f"| [`esprof {name}`]({file}#esprof-{name}) | {summary} |")
        helps = (f"\n## {name}\n\n```text\n{text}\n```" for name, text in sections.items())
        pages[file] = "\n".join([NOTE, f"# Commands: {group.lower()}", *helps, ""])
    return {"index.md": "\n".join([*index, ""]), **pages}


def _helps(command: click.Command | None, parent: click.Context, name: str) -> dict[str, str]:
    """The help of a verb, and of those within it where it is a group of them."""
    assert command is not None, name
    context = click.Context(command, info_name=name, parent=parent, terminal_width=100)
    found = {context.command_path: command.get_help(context)}
    if isinstance(command, click.Group):
        for inner in command.list_commands(context):
            found |= _helps(command.get_command(context, inner), context, inner)
    return found


def findings() -> dict[str, str]:
    """The catalogue, on a page for each family, and an index."""
    intro = (
        "Ids are stable. `esprof explain ID` shows the same text in the terminal. JSON joins the words of evidence names by "
        "underscores: `input stall` is `input_stall` there. Savings come from replay. Savings of "
        "recurring slow steps (ESP601, ESP806) are measured on all steps of the run instead."
    )
    index = [NOTE, "# Findings\n", _wrapped(intro), "", "| id | finding | family |", "|---|---|---|"]
    pages = {}
    for digit, family in FAMILIES.items():
        file = f"{_slug(family)}.md"
        found = [page for page in PAGES.values() if page.family == family]
        if found:
            pages[file] = "\n".join([NOTE, f"# ESP{digit}xx: {family}", *map(_page, found), ""])
        for page in found:
            index.append(f"| [{page.id}]({file}#{_slug(_heading(page))}) | {page.title} | [{family}]({file}) |")
    return {"index.md": "\n".join([*index, _ignoring(), ""]), **pages}


def _heading(page: Page) -> str:
    return f"{page.id}: {page.title}"


def _slug(title: str) -> str:
    """The name of a page, or the anchor of a heading as mkdocs and GitHub make it."""
    return re.sub(r"[-\s]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower())


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
            "and the verdict, and list them separately with id, saving, reason and last day (`ignored` in JSON). "
            f"{entry.id} is ignored here up to and including the day of `until`; afterwards it counts again, with a "
            "warning. With `ranks`, only findings that name no other ranks are ignored. The file is the nearest from the "
            "current directory upwards that has a table `[tool.esprof]`; `--no-ignore` skips it. Findings that stop the "
            f"job ({stopping}) cannot be ignored, and an invalid entry is an error."
        )
    )


def _page(page: Page) -> str:
    points = {"Evidence": page.evidence, "Saving": page.saving, "Remedy": page.remedy}
    listed = "\n".join(_point(f"**{label}.** {text}") for label, text in points.items())
    return f"\n## {_heading(page)}\n\n{_wrapped(page.meaning)}\n\n{listed}"


def _point(text: str) -> str:
    """A point of a list."""
    return _wrapped(f"- {text}", indent="  ")


def _wrapped(text: str, indent: str = "") -> str:
    return textwrap.fill(text, WIDTH, subsequent_indent=indent, break_long_words=False, break_on_hyphens=False)


def what_ifs() -> str:
    """All kinds of what-if terms but those with pages of their own, in the order in which a scenario applies them."""
    intro = (
        "A scenario is one or more terms, separated by commas; all of them apply at once. A comma inside brackets belongs "
        "to the term. Some terms take a scope before their name, which limits them to some ranks: `rank3.`, "
        "`rank0-3+6.`, or `device[NAME].`, where NAME is part of the device's name. "
        "A term is declined, with the reason, if the run lacks the evidence for it. "
        "What-ifs on [DataLoaders](what-ifs-loaders.md), [memory](what-ifs-memory.md), [pipelines](what-ifs-pipelines.md) "
        "and [needless work](what-ifs-needless.md) have pages of their own."
    )
    others = [kind for kind in TERMS.values() if not isinstance(kind.effect, Loading) and kind.memory is None]
    return _terms("What-ifs", intro, [kind for kind in others if kind.name not in (*NEEDLESS, *ON_PIPELINES)])


def what_ifs_on_needless_work() -> str:
    intro = "These [terms](what-ifs.md) leave out work that a job does without need, or needs only a part of."
    return _terms("What-ifs on needless work", intro, [TERMS[name] for name in NEEDLESS])


def what_ifs_on_pipelines() -> str:
    intro = (
        "These [terms](what-ifs.md) change a recorded pipeline of torch.distributed.pipelining over gloo. Its steps are "
        "rebuilt from the recorded passes and messages, by the order of passes and the waits of torch's schedules. They "
        "are declined if the recorded schedule, rebuilt in this way, differs from the recorded steps by more than 10 %. "
        "[Results](../results/unseen-jobs.md#schedules) of changes that were carried out."
    )
    return _terms("What-ifs on pipelines", intro, [TERMS[name] for name in ON_PIPELINES])


def what_ifs_on_memory() -> str:
    intro = (
        "These [terms](what-ifs.md) change the [peak memory](../how-to/memory.md). The peak of the rank with the least room "
        "is predicted, and the time where the run tells it."
    )
    kinds = [kind for kind in TERMS.values() if kind.memory is not None and kind.name not in ON_PIPELINES]
    return _terms("What-ifs on memory", intro, kinds)


def what_ifs_on_loaders() -> str:
    """The kinds of what-if terms that change how DataLoaders make their batches."""
    intro = (
        "These [terms](what-ifs.md) change how DataLoaders make their batches. All batches of the run are delivered "
        "again, by the rules of PyTorch's DataLoader: workers get batches in turn, at most `num_workers` x "
        "`prefetch_factor` are requested before they are delivered, and they are delivered in order, if no term says "
        "otherwise. A step waits for "
        "the last rank's batch, and takes no less than the host's CPUs need. The interval includes how much batches "
        "scatter. The terms are declined if the unchanged loaders, replayed in this way, do not lead to the recorded "
        "steps, or if making batches waited for a CPU for more than a tenth of its time."
    )
    return _terms(
        "What-ifs on DataLoaders", intro, [kind for kind in TERMS.values() if isinstance(kind.effect, Loading)]
    )


def _terms(title: str, intro: str, kinds: Sequence[Kind]) -> str:
    parts = [NOTE, f"# {title}\n", _wrapped(intro)]
    for kind in kinds:
        written = ", ".join(f"`{example}`" for example in kind.examples)
        points = [_point(f"**Syntax.** {written}"), _point(f"**Needs.** {kind.needs}")]
        points += [_point(f"**Assumes.** {kind.assumes}")] if kind.assumes else []
        parts += [f"\n## {kind.name}\n{_wrapped(kind.meaning)}\n", *points]
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


def plan_schema() -> str:
    """The JSON Schema of a Plan."""
    schema = msgspec.json.schema(Plan)
    return json.dumps({"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}, indent=1) + "\n"


def advice_schema() -> str:
    """The JSON Schema of answers on several jobs in whole devices."""
    answers, defined = msgspec.json.schema_components(ANSWERS, ref_template="#/$defs/{name}")
    schema = {"$schema": "https://json-schema.org/draft/2020-12/schema", "anyOf": answers, "$defs": defined}
    return json.dumps(schema, indent=1) + "\n"


def _pages() -> dict[str, str]:
    """Text of each page, by its path in docs/."""
    of_training = run_directory.tables("Tables of labels and scores", run_directory.OF_TRAINING)
    return {
        **{f"reference/commands/{name}": text for name, text in commands().items()},
        **{f"reference/findings/{name}": text for name, text in findings().items()},
        "reference/run-directory/index.md": f"{NOTE}\n{run_directory.file_list()}",
        "reference/run-directory/tables.md": f"{NOTE}\n{run_directory.tables()}",
        "reference/run-directory/tables-training.md": f"{NOTE}\n{of_training}",
        "reference/run-directory/logs.md": f"{NOTE}\n{run_directory.log_fields()}",
        "reference/what-ifs.md": what_ifs(),
        "reference/what-ifs-loaders.md": what_ifs_on_loaders(),
        "reference/what-ifs-memory.md": what_ifs_on_memory(),
        "reference/what-ifs-needless.md": what_ifs_on_needless_work(),
        "reference/what-ifs-pipelines.md": what_ifs_on_pipelines(),
        "how-to/verify.md": verify(),
        "reference/plan.schema.json": plan_schema(),
        "reference/advice.schema.json": advice_schema(),
    }


def _surplus(pages: dict[str, str]) -> list[Path]:
    """Pages in the generated folders that are not made from the code any more."""
    folders = (DOCS / "reference" / name for name in ("commands", "findings", "run-directory"))
    return [file for folder in folders for file in folder.glob("*.md") if str(file.relative_to(DOCS)) not in pages]


def main() -> None:
    pages = _pages()
    long = [name for name, text in pages.items() if name.endswith(".md") and text.count("\n") > MAX_LINES]
    if long:
        sys.exit(f"{', '.join(long)}: more than {MAX_LINES} lines")
    checks = "--check" in sys.argv[1:]
    stale = [str(file.relative_to(DOCS)) for file in _surplus(pages)]
    for name in stale if not checks else ():
        (DOCS / name).unlink()
    for name, text in pages.items():
        file = DOCS / name
        if file.exists() and file.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if not checks:
            file.parent.mkdir(exist_ok=True)
            file.write_text(text, encoding="utf-8")
            print(f"wrote {file}")
    if stale and checks:
        sys.exit(f"{', '.join(stale)} in docs/ differ from the code: run `make docs`")


if __name__ == "__main__":
    main()
