"""The page as a document: complete, offline, bounded, and safe from hostile names."""

import json
import re
from html.parser import HTMLParser

import msgspec
import pytest

from esprof.analyzers.evidence import by_step
from esprof.analyzers.samples.flame import MAX_NODES, MAX_NODES_OF_A_RANK, MAX_RANKS_APART
from esprof.core.errors import OutputError
from esprof.replay.answer import Prediction
from esprof.reports.html.page import plotly_script, render_html, write_report
from tests.cases import report as case
from tests.cases.gold import assert_gold

VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """The elements of a page, the text of its scripts, and its visible text. An unclosed tag fails."""

    def __init__(self, html):
        super().__init__()
        self.elements, self.scripts, self.text, self._open = [], [], [], []
        self.feed(html)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_endtag(self, tag):
        assert self._open.pop() == tag

    def handle_data(self, data):
        if "script" in self._open:
            self.scripts.append(data)
        elif "style" not in self._open:
            self.text.append(data)

    def attributes(self, name):
        return [attrs[name] for _, attrs in self.elements if name in attrs]


@pytest.fixture(scope="module")
def html():
    return render_html(case.report())


@pytest.fixture(scope="module")
def hostile():
    return render_html(case.hostile_report())


def outline(page):
    """Sections, headings and charts, one per line: the structure, independent of the style."""
    lines = []
    for tag, attrs in page.elements:
        if tag in ("header", "nav", "main", "section", "article", "h1", "h2", "h3", "footer") or "aria-label" in attrs:
            named = [f"{key}={attrs[key]}" for key in ("id", "class", "role", "aria-label") if key in attrs]
            lines.append(" ".join([tag, *named]))
    return "\n".join(lines)


def test_structure(html):
    assert_gold("report-outline.txt", outline(Page(html)))


def test_the_verdict_comes_before_its_evidence(html):
    text = "\n".join(Page(html).text)
    found = [text.index(said) for said in (case.diagnosis().verdict, "Step time", "saves per step", "Not predicted")]
    assert found == sorted(found)


def test_a_saving_indistinguishable_from_zero_is_not_listed_as_a_saving():
    unsure = msgspec.structs.replace(case.findings()[0], saving_low_us=0.0)
    shown = msgspec.structs.replace(case.diagnosis(found=()), uncertain=(unsure,))
    text = "\n".join(Page(render_html(case.report(diagnosis=shown))).text)
    assert "May save nothing" in text
    assert f"ESP101, 0 to 45.0 ms: {unsure.title}" in text
    assert "Best single fix" not in text
    assert "device-hours a day" not in text


def test_commands_in_backticks_are_code_and_empty_evidence_is_left_out():
    first = case.findings()[0]
    said = "Run `esprof ops <RUN>`, not `this\n"
    finding = msgspec.structs.replace(first, advice=said, evidence=first.evidence | {"outliers": by_step({}, "ns")})
    page = render_html(case.report(diagnosis=case.diagnosis(found=(finding,))))
    assert "<p>Run <code>esprof ops &lt;RUN&gt;</code>, not `this</p>" in page
    assert "outliers" not in page


def test_every_link_has_a_target_on_the_page(html):
    page = Page(html)
    targets = set(page.attributes("id"))
    assert {href.removeprefix("#") for href in page.attributes("href") if href.startswith("#")} <= targets
    assert len(page.attributes("id")) == len(targets)


def test_every_chart_has_an_element_on_the_page(html):
    assert set(case.charts(case.report())) <= set(Page(html).attributes("id"))


def test_the_page_refers_to_nothing_outside_itself(html, hostile):
    for page in (Page(html), Page(hostile)):
        assert page.attributes("src") == []
        assert {href for href in page.attributes("href") if not href.startswith("#")} == {"data:,"}
        assert "url(" not in html.split("</style>")[0]


def test_plotly_is_inlined_once(html):
    assert html.count(plotly_script()) == 1


def test_the_policy_allows_these_scripts_and_no_others(html):
    page = Page(html)
    policy = page.attributes("content")[0]
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-inline" not in policy.split("style-src")[0]
    assert (
        len(re.findall("'sha256-", policy)) == sum(tag == "script" and not attrs for tag, attrs in page.elements) == 2
    )


def test_hostile_names_are_text(hostile):
    page = Page(hostile)
    assert [attrs for tag, attrs in page.elements if tag == "script"] == [
        {"type": "application/json", "id": "charts"},
        {"type": "application/json", "id": "priced"},
        {},
        {},
    ]
    assert not [tag for tag, _ in page.elements if tag == "img"]
    assert not [name for _, attrs in page.elements for name in attrs if name.startswith("on")]
    text = "\n".join(page.text)
    assert "<script>alert(1)</script>" in text
    assert "{{7*7}}" in text
    assert "\x1b" not in hostile
    assert "\u202e" not in hostile


def test_chart_data_cannot_end_its_script(hostile):
    data = re.search(r'<script type="application/json" id="charts">(.*?)</script>', hostile, re.DOTALL)[1]
    assert not set("<>&\u2028\u2029") & set(data)
    names = {chart["id"]: chart for chart in json.loads(data)}
    assert "alert(1)" in names["timeline-chart"]["data"][0]["customdata"][0][0]


def test_the_page_is_bounded():
    bars = tuple(
        msgspec.structs.replace(bar, name=f"{number}::{'at::native::kernel<float, 4>' * 9}")
        for number, bar in enumerate(case.excerpt(ranks=180).bars[:4_000])
    )
    assert len(bars) >= 3_900
    file, lines = f"python3.11/site-packages/{'package/' * 5}file.py", ((1_234, 50.0), (1_235, 30.0), (1_236, 20.0))
    functions = [(f"function_of_a_long_name_{n}", file, "other", n - 1, 1, 1, lines) for n in range(MAX_NODES)]
    flame = case.flame(512, functions)
    trees = (msgspec.structs.replace(tree, nodes=tree.nodes[:MAX_NODES_OF_A_RANK]) for tree in flame.trees[1:])
    flame = msgspec.structs.replace(flame, trees=(flame.trees[0], *trees))
    assert len(flame.trees) == MAX_RANKS_APART + 1
    bounded = case.report(ranks=512, timeline=case.excerpt(bars=bars), steps=case.steps(1_200), flame=flame)
    html = render_html(bounded)
    assert len(html.encode()) - len(plotly_script().encode()) < 1_300_000
    assert "64 of 512 shown; esprof diagnose --json lists all." in html


def test_a_long_run_reports_how_its_steps_are_summarised():
    many = msgspec.structs.replace(
        case.steps(), steps=120_000, stretch=200, above=7, window_count=900, windows=(), pass_count=70, passes=()
    )
    text = " ".join("\n".join(Page(render_html(case.report(steps=many))).text).split())
    assert "the shortest and the longest of every 200 steps" in text
    assert "7 steps took longer than the axis shows, up to 4,812 ms" in text
    assert "900 windows, too many to shade" in text
    assert "70 further passes, too many to draw" in text


def test_a_run_without_plain_steps_has_no_steps_section():
    page = Page(render_html(case.report(steps=None)))
    assert "steps" not in page.attributes("id")
    assert "#steps" not in page.attributes("href")


def test_a_run_without_findings_steps_to_predict_or_scenarios_renders():
    prediction = msgspec.structs.replace(case.replay().prediction, held_out=(), reason="one steady step only")
    path = msgspec.structs.replace(case.replay().critical_path, span_us=0.0, classes={}, by_rank=())
    bare = msgspec.structs.replace(
        case.replay(ranks=1, scenarios=(), warnings=()), prediction=prediction, critical_path=path, left_out=()
    )
    report = case.report(
        ranks=1,
        command=(),
        versions={},
        created_ns=None,
        diagnosis=case.diagnosis(ranks=1, found=(), warnings=()),
        replay=bare,
        timeline=case.excerpt(bars=()),
        operations=msgspec.structs.replace(case.operations(), ops=(), found=0),
        flame=None,
    )
    text = "\n".join(Page(render_html(report)).text)
    assert "Python stacks" not in text
    said = [
        "No significant cause was found",
        "No scenario was requested",
        "one steady step only",
        "There is nothing to draw",
        "No operation",
    ]
    assert [one for one in said if one not in text] == []


def section_of(html, name):
    return re.search(rf'<section id="{name}">(.*?)</section>', html, re.DOTALL)[1]


def text_of(html):
    return " ".join("".join(Page(html).text).split())


def test_every_position_of_the_controls_has_a_priced_cell(html):
    data = re.search(r'<script type="application/json" id="priced">(.*?)</script>', html, re.DOTALL)[1]
    together, buckets = json.loads(data)
    assert (len(together), len(buckets)) == (6, 3)
    assert together[0][:2] == ["120.3 ms a step, as measured", ""]
    text, spec, *ends = together[3]
    assert text == "76.0 ms a step (74.5 to 78.3 ms), 1.58× as fast"
    assert spec == "network=2x,data=0"
    step, low, high = ends
    assert low < step < high
    assert together[5] is None
    shown = text_of(section_of(html, "what-if"))
    for said in ("Speed of the network", "No waits for input", "Size of gradient buckets, MiB", "no GPU was recorded"):
        assert said in shown


def test_the_heat_map_marks_the_last_rank_and_leaves_out_other_members(html):
    section = section_of(html, "arrivals")
    assert section.count("▲") - 1 == 3  # The note explains the mark.
    assert section.count("--late:100.0%") == 1
    assert section.count("–") == 2
    assert "3 of 7 collectives of a step" in text_of(section)


def test_the_input_of_each_worker_has_its_longest_parts(html):
    text = text_of(section_of(html, "input"))
    assert "decode 21.0 ms, collate 4.00 ms" in text
    assert "99.1 %" in text


def test_a_finding_without_a_price_has_no_saving():
    unpriced = msgspec.structs.replace(
        case.findings()[0], saving_us=0.0, saving_low_us=0.0, saving_high_us=0.0, saving_pct=0.0
    )
    text = text_of(section_of(render_html(case.report(diagnosis=case.diagnosis(found=(unpriced,)))), "findings"))
    assert "not priced" in text
    assert "saves per step" not in text


def test_the_first_error_on_the_page_is_that_of_held_out_steps(html):
    text = text_of(html)
    assert "Prediction error1.0 %" in text
    assert text.index("Held-out error") < text.index("Worst replay error")
    nothing = Prediction(fit_steps=(), held_out=(), reason="too few steps")
    without = msgspec.structs.replace(case.replay(4), prediction=nothing)
    assert "Prediction errorunknown" in text_of(render_html(case.report(replay=without)))


def test_the_page_says_what_it_holds_and_what_it_lacks(html):
    text = text_of(html)
    assert "This page holds the command line with secrets redacted" in text
    assert "Needed for other bucket sizes. Record with --shapes." in text


def test_operations_can_be_searched_and_sorted(html):
    section = section_of(html, "operations")
    assert '<input type="search" data-filter="operations-table"' in section
    assert section.count("<button") == 8
    text = text_of(section)
    for said in (
        "The first 5 of 311 by own time on the GPU",
        "cutlass::Kernel2, 2 more",
        "at model/blocks.py(41): forward",
    ):
        assert said in text
    assert "3.62 … 7.25, rank 1" in text
    assert "own GPU" not in render_html(case.report(operations=case.operations(has_gpu=False)))


def test_stacks_report_which_steps_were_sampled(html):
    text = " ".join("".join(Page(html).text).split())
    assert "2,400 samples of the training thread of 4 ranks, covering 2,400 ms of steps with stacks" in text
    assert "it ran on a CPU for 61.0 % of that" in text
    assert section_of(html, "python").count("<option>") == 5
    assert "<option>" not in section_of(render_html(case.report(ranks=1)), "python")


def test_the_page_is_written_atomically(tmp_path, html):
    path = tmp_path / "new" / "report.html"
    write_report(case.report(), path)
    assert path.read_text(encoding="utf-8") == html
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError):
        write_report(case.report(), tmp_path / "file" / "report.html")


def test_recorded_allocations_show_the_parts_of_each_ranks_peak(html):
    text = " ".join(Page(html).text)
    table = text[text.index("Peak of the tensors") :]
    for shown in ("activations", "29.0 GiB", "21.0 GiB", "80.0 GiB"):
        assert shown in table
    assert "buckets" not in table[: table.index("80.0 GiB")]
    unrecorded = msgspec.structs.replace(case.report(), replay=msgspec.structs.replace(case.replay(), memory=()))
    assert "Peak of the tensors" not in render_html(unrecorded)
