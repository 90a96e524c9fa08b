"""`benchmarks.ledger`: the table of what was promised and what came, and its place in a page."""

import subprocess
import sys

import pytest

from benchmarks.ledger import BEGIN, END, carried_out, everything, groups, section, section_of, unkept, with_section
from esprof import load
from esprof.run.logs import LEDGER, JobClass
from tests.cases.graph import gloo, op, run_of, step
from tests.cases.ledger import outcome_of, promised
from tests.cases.run_directory import write_run

ALONE = JobClass(backend=None, devices="CPU", world_size=1, gradients=None)


def lines():
    kept = [promised("bucket_mb=4"), promised("bucket_mb=1"), promised("data[ready]=0", job=ALONE)]
    return [*kept, *(outcome_of(one, share) for one, share in zip(kept, (0.75, 0.6, 0.8), strict=True))]


def test_outcomes_are_put_together_by_term_and_class_of_job():
    found = groups(lines()[3:])
    assert [(group.terms, group.job, len(group.outcomes)) for group in found] == [
        ("`bucket_mb`", "DDP, gloo, 2 × CPU", 2),
        ("`data[ready]`", "1 × CPU", 1),
    ]
    assert found[0].row() == "| `bucket_mb` | DDP, gloo, 2 × CPU | verify | 2 | 12.5 | 12.5 | 25.0 | 1 | 0.0 |"
    assert everything(lines()[3:]).held_pct == pytest.approx(200 / 3)


def test_promises_that_nobody_measured_are_counted():
    left = promised("compress=fp16")
    assert unkept([*lines(), left]) == [left]
    assert "Of 1 promises more nothing was measured" in " ".join(section([*lines(), left], "").split())


def test_the_section_takes_the_place_of_the_one_before():
    page = f"# Accuracy\n\nabove\n\n{BEGIN}\nold\n{END}\n\nbelow\n"
    new = section(lines(), "A note with \\1 and *stars*.")
    changed = with_section(page, new)
    assert changed == f"# Accuracy\n\nabove\n\n{new}\nbelow\n"
    assert section_of(changed) == new
    assert with_section("# Accuracy\n", new) == f"# Accuracy\n\n{new}"


def test_the_command_writes_the_page(tmp_path):
    for line in lines():
        LEDGER.append(tmp_path / "run", line)
    page = tmp_path / "page.md"
    page.write_text("# Accuracy\n")
    command = [sys.executable, "-m", "benchmarks.ledger", str(tmp_path / "run"), "--write", str(page), "--note", "So."]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert '"ledger_error_median"' in done.stdout
    assert page.read_text().count("| `bucket_mb` |") == 1


def test_what_the_test_bed_changed_goes_into_the_same_ledger(tmp_path):
    rows = []
    for number in range(6):
        begin = number * 50_000.0
        rows += [step(number, begin, begin + 50_000), op("aten::linear", begin, 40_000)]
        rows += gloo(begin + 40_000, begin + 40_010, begin + 49_000)
    made = run_of({0: rows, 1: rows})
    write_run(tmp_path / "run", made.meta, {("events", rank): made.events(rank) for rank in made.ranks})
    outcome = carried_out(load(tmp_path / "run"), "network=2x", [50.0, 50.0], [46.0, 47.0])
    promise, line = LEDGER.read(tmp_path / "run")
    assert (line, line.id, line.by) == (outcome, promise.id, "test bed")
    assert line.observed.us == 46_500
