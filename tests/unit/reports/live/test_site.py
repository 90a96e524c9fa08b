"""The application over Run directories on disk: pages, access control and actions."""

import asyncio
import json
import resource
import subprocess

import msgspec
import pytest
from starlette.testclient import TestClient

from esprof.core.plan import read_plan, write_plan
from esprof.reports.live import hub
from esprof.reports.live.proposal import LatestSearch, write_search
from esprof.reports.live.server import Site, frame
from esprof.reports.live.view import view_of
from esprof.run.logs import HISTORY, JobEvent
from tests.cases import live, step_runs
from tests.cases.plans import plan_of

HOSTILE = "</script><img src=x onerror=alert(1)>\x1b[31m\u202e{{7*7}}"


class Page:
    """An HTTP client of a served Run."""

    def __init__(self, *runs, **options):
        self.app, self.hub, self.gate = live.site(*runs, **options)
        self.client = TestClient(self.app, base_url="http://127.0.0.1:8765", follow_redirects=False)

    def __enter__(self):
        self.client.__enter__()
        return self

    def __exit__(self, *error):
        self.client.__exit__(*error)

    def text(self, path="/jobs/1"):
        answer = self.client.get(path)
        assert answer.status_code == 200
        return answer.text

    def post(self, verb, plan="", *, path="/jobs/1", **headers):
        form = {"from": self.gate.page_token, "plan": plan}
        return self.client.post(f"{path}/{verb}", data=form, headers=headers)


@pytest.fixture
def run(tmp_path):
    return live.running(tmp_path / "run")


@pytest.fixture
def page(run):
    with Page(run) as page:
        yield page


def test_a_page_shows_the_content_of_the_files(run, page):
    text = page.text()
    for message in ("<h1>run</h1>", "40.0 ms", "median of the newest 50 steps", "4 ESTs on 2 processes", "37.5 %"):
        assert message in text
    assert "30.0 % to 45.0 %" in text  # The gain's interval.
    assert "Accept" in text
    assert "Roll back" not in text
    live.adopted(run)
    text = page.text()
    assert "Roll back" in text
    assert "plan 1</text>" in text  # The mark in the chart.
    assert "25.0 ms" in text


def test_the_page_of_an_empty_folder(tmp_path):
    (tmp_path / "run").mkdir()
    with Page(tmp_path / "run") as page:
        text = page.text()
    assert "No data yet" in text
    assert "Search for a better plan" in text
    assert f'<code>placement=Placement(plan="{tmp_path}/run/plan.json")</code>' in text


def test_the_page_of_a_recorded_run_leads_to_its_report(tmp_path):
    run = step_runs.write(tmp_path / "run", step_runs.step_table([10, 10]))
    with Page(run) as page:
        text = page.text()
    assert f"<code>esprof report {run}</code>" in text
    assert "No data yet" not in text
    assert "Search for a better plan" not in text


def test_waits_are_for_the_busiest_rank_and_ests_are_explained(run, page):
    text = page.text()
    assert "Waiting for the busiest rank</dt><dd>37.5 %" in text
    assert '<td class="n">10.0 ms</td><td class="n">30.0 ms</td>' in text
    assert '<td class="n">40.0 ms</td><td class="n">0 ms</td>' in text
    assert "EasyScaleThread" in text


def test_the_start_page_is_the_job_or_the_list_of_jobs(run, tmp_path):
    with Page(run) as page:
        answer = page.client.get("/")
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/1")
        assert page.client.get("/jobs/2").status_code == 404
    with Page(run, live.running(tmp_path / "other")) as page:
        text = page.text("/")
        assert 'href="/jobs/1"' in text
        assert 'href="/jobs/2"' in text
        assert "All jobs" in page.text("/jobs/2")


def test_the_policy_allows_only_our_own_scripts_and_styles(page):
    answer = page.client.get("/jobs/1")
    policy = answer.headers["content-security-policy"]
    assert "default-src 'none'" in policy
    assert "unsafe" not in policy
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert "http" not in answer.text.replace("http-equiv", "")
    assert " style=" not in answer.text
    for name, kind in (("live.css", "text/css"), ("live.js", "text/javascript")):
        assert page.client.get(f"/{name}").headers["content-type"].startswith(kind)


def test_names_of_a_job_are_escaped(tmp_path):
    run = live.running(tmp_path / "run")
    proposal = live.proposal_of()
    ranks = tuple(msgspec.structs.replace(rank, device=f"{rank.rank}{HOSTILE}") for rank in proposal.ranks)
    plan = msgspec.structs.replace(proposal.plan, id=HOSTILE)
    write_search(
        run, LatestSearch(proposal=msgspec.structs.replace(proposal, ranks=ranks, plan=plan, warnings=(HOSTILE,)))
    )
    live.adopted(run, msgspec.structs.replace(plan_of(live.UNEVEN), id=HOSTILE))
    HISTORY.append(run, JobEvent(what="refused", step=3, plan=HOSTILE, reason=HOSTILE))
    (run / "rounds.jsonl").write_text(
        json.dumps({"round": 1, "kind": "assignment", "step": 3, "outcome": "unknown", "why": HOSTILE})
    )
    with Page(run) as page:
        text = page.text()
    assert "<img" not in text
    assert "\x1b" not in text
    assert "&lt;img src=x onerror=alert(1)&gt;\\x1b[31m" in text
    assert "{{7*7}}" in text


@pytest.mark.parametrize(
    ("host", "answers"),
    [("localhost:9000", 200), ("[::1]:8765", 200), ("evil.example:8765", 421), ("192.168.0.7:8765", 421), ("", 421)],
)
def test_foreign_host_names_are_refused(page, host, answers):
    assert page.client.get("/jobs/1", headers={"host": host}).status_code == answers


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:80"])
def test_forms_of_other_sites_are_refused(run, page, origin):
    answer = page.post("accept", "plan-1", origin=origin)
    assert answer.status_code == 403
    assert not (run / "plan.json").exists()
    assert page.post("accept", "plan-1", origin="http://127.0.0.1:8765").status_code == 303


@pytest.mark.parametrize("number", ["0", "2", "9" * 5000, "-1", "x", "²"])
def test_there_is_no_job_of_another_number(page, number):
    assert page.client.get(f"/jobs/{number}").status_code == 404


def test_a_form_without_the_page_token_is_refused(run, page):
    for token in ("", "guessed", page.gate.page_token[:-1]):
        answer = page.client.post("/jobs/1/accept", data={"from": token, "plan": "plan-1"})
        assert answer.status_code == 403
        assert "reload" in answer.text
    assert page.client.get("/jobs/1/accept").status_code == 405
    assert page.client.post("/jobs/1/accept", content=b"x" * 5000).status_code == 413
    assert page.post("dance").status_code == 404
    assert not (run / "plan.json").exists()


class TestToken:
    TOKEN = "a token of many characters"

    @pytest.fixture
    def page(self, run):
        with Page(run, host="0.0.0.0", token=self.TOKEN) as page:
            yield page

    @pytest.mark.parametrize("path", ["/", "/jobs/1", "/jobs/1/events", "/live.js", "/?token=wrong"])
    def test_pages_need_it(self, page, path):
        assert page.client.get(path).status_code == 401

    def test_actions_need_it(self, run, page):
        assert page.post("accept", "plan-1").status_code == 401
        assert page.client.post(f"/jobs/1/accept?token={self.TOKEN}").status_code == 401
        assert not (run / "plan.json").exists()

    def test_a_browser_that_sent_it_gets_a_cookie(self, page):
        answer = page.client.get("/jobs/1", params={"token": self.TOKEN})
        assert (answer.status_code, answer.headers["location"]) == (303, "/jobs/1")
        cookie = answer.headers["set-cookie"]
        assert "HttpOnly" in cookie
        assert self.TOKEN not in cookie
        assert "<h1>run</h1>" in page.text()

    @pytest.mark.parametrize("path", ["//evil.example/", "/%2Fevil.example/", "///evil.example/"])
    def test_no_path_leads_to_another_site(self, page, path):
        answer = page.client.get(f"http://127.0.0.1:8765{path}?token={self.TOKEN}")
        assert (answer.status_code, answer.headers["location"]) == (303, "/evil.example/")

    def test_a_program_may_send_it_as_a_header(self, page):
        answer = page.client.get("/jobs/1", headers={"authorization": f"Bearer {self.TOKEN}"})
        assert answer.status_code == 200

    def test_ip_addresses_are_accepted_as_host_names(self, page):
        bearer = {"authorization": f"Bearer {self.TOKEN}"}
        assert page.client.get("/jobs/1", headers=bearer | {"host": "192.168.0.7:8765"}).status_code == 200
        assert page.client.get("/jobs/1", headers=bearer | {"host": "evil.example"}).status_code == 421


def test_accept_sends_the_plan_to_the_job(run, page):
    assert page.post("accept", "plan-1").status_code == 303
    plan = read_plan(run / "plan.json")
    assert (plan.id, plan.parts.assignment.body.ests) == ("plan-1", live.UNEVEN)
    event = HISTORY.read(run)[-1]
    assert (event.what, event.plan, event.version, event.step) == ("accepted", "plan-1", 1, 60)
    text = page.text()
    assert "Waiting for the job" in text
    assert 'id="button-accept"' not in text


def test_only_the_current_proposal_can_be_accepted(run, page):
    page.post("accept", "plan-0")
    assert not (run / "plan.json").exists()
    assert "there is a newer proposal" in page.text()
    live.write_steps(run, [live.live_step(60, ests=(1, 3))])
    page.post("accept", "plan-1")
    assert not (run / "plan.json").exists()
    assert "the proposal is outdated" in page.text()


def test_a_rejected_plan_is_not_proposed_again_by_another_server(run, page):
    page.post("reject", "plan-1")
    assert 'id="button-accept"' not in page.text()
    page.post("accept", "plan-1")
    assert not (run / "plan.json").exists()
    with Page(run) as other:
        assert 'id="button-accept"' not in other.text()
        assert ">rejected</span>" in other.text()


def test_roll_back_sends_the_state_before_the_plan(run, page):
    live.adopted(run, codec="fp16")
    page.post("roll-back", "plan-1:2")
    assert "is no longer active" in page.text()
    page.post("roll-back", "plan-1:1")
    plan = read_plan(run / "plan.json")
    assert plan.version == 2
    assert plan.parts.assignment.body.ests == live.EVEN
    assert plan.parts.compression.body.default.codec == "fp16"
    assert plan.fallback.margin > 1000  # The job must not judge what a person wants.
    assert HISTORY.read(run)[-1].what == "rolled_back"


def test_a_reverted_plan_cannot_be_rolled_back(run, page):
    plan = live.adopted(run)
    HISTORY.append(run, JobEvent(what="reverted", step=80, plan=plan.id, version=1))
    page.post("roll-back", "plan-1:1")
    assert read_plan(run / "plan.json").version == 1
    assert 'id="button-roll-back"' not in page.text()


def test_a_damaged_plan_is_reported_and_the_next_version_is_higher(run, page):
    live.adopted(run, plan_of(live.UNEVEN, version=7))
    whole = (run / "plan.json").read_bytes()
    (run / "plan.json").write_bytes(whole[: len(whole) // 2])
    (run / "plan.status.json").unlink()  # The history alone knows its version now.
    text = page.text()
    assert "plan.json: is not a plan" in text
    assert "The rest of the page is up to date" in text
    page.post("roll-back", "plan-7:7")
    assert read_plan(run / "plan.json").version == 8
    assert "is not a plan" not in page.text()


@pytest.mark.parametrize("name", ["plan.status.json", "advice.json", "live.jsonl", "history.jsonl", "rounds.jsonl"])
@pytest.mark.parametrize("content", [b"{", b"\xff\xfe\n", b'{"schema": 3}\n', b"\0" * 100])
def test_the_page_survives_damaged_files(run, page, name, content):
    (run / name).write_bytes(content)
    text = page.text()
    assert ("<h2>Problems" in text) == (not name.endswith("l"))  # Of lines those that are none are left out.
    (run / name).unlink()
    assert "<h2>Problems" not in page.text()


def test_a_job_that_cannot_be_shown_leaves_the_others(tmp_path, monkeypatch):
    broken, whole = live.running(tmp_path / "broken"), live.running(tmp_path / "whole")

    def drawn(job):
        if job.run == broken:
            raise OverflowError("<too large>")
        return view_of(job)

    monkeypatch.setattr(hub, "view_of", drawn)
    with Page(broken, whole) as page:
        assert "median of the newest 50 steps" in page.text("/jobs/2")
        assert "whole" in page.text("/")
        assert "cannot be shown: OverflowError(&#39;&lt;too large&gt;&#39;)" in page.text("/jobs/1")
        assert page.post("accept", "plan-1").status_code == 303


def test_a_removed_run_is_reported(run, page):
    subprocess.run(["rm", "-r", str(run)], check=True)
    assert "no longer exists" in page.text()


def test_a_full_disk_leaves_all_files_unchanged(run, page):
    write_plan(run / "plan.json", plan_of(live.EVEN))
    before = sorted(run.iterdir()), (run / "plan.json").read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (16, limits[1]))
    try:
        page.post("accept", "plan-1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert (sorted(run.iterdir()), (run / "plan.json").read_bytes()) == before
    assert "plan.json: cannot be written" in page.text()
    page.post("accept", "plan-1")
    assert read_plan(run / "plan.json").id == "plan-1"


def test_valid_rounds_of_tune_are_shown(run, page):
    lines = [
        {"round": 0, "kind": "assignment", "step": 9, "before_us": 40_000, "measured_us": 30_000, "outcome": "kept"},
        {
            "round": 1,
            "kind": "assignment",
            "step": 99,
            "outcome": "nothing",
            "why": "gains too little",
            "unheard_of": [1],
        },
        {"round": "three"},
    ]
    (run / "rounds.jsonl").write_text("\n".join(map(json.dumps, lines)) + "\n{")
    text = page.text()
    assert "Rounds of" in text
    assert "30.0 ms" in text
    assert "gains too little" in text
    assert "three" not in text


def test_the_format_of_a_server_sent_event():
    assert frame("section", b'{"html": "a\\nb"}', 7) == b'id: 7\nevent: section\ndata: {"html": "a\\nb"}\n\n'
    with pytest.raises(AssertionError):
        frame("section", b"two\nlines")


class Stream:
    """The event stream of a Run."""

    def __init__(self, hub, gate, seen=0):
        self.hub = hub
        self._frames = Site(hub, gate)._events(hub.jobs["run"].sections, seen)

    async def next(self):
        """(event, number, data)."""
        fields = dict(line.split(": ", 1) for line in (await anext(self._frames)).decode().split("\n") if ": " in line)
        return fields.get("event"), int(fields.get("id", 0)), fields.get("data")

    async def sections(self, count):
        found = [await self.next() for _ in range(count)]
        return {json.loads(data)["name"]: json.loads(data)["html"] for _, _, data in found}


def test_a_stream_sends_each_section_once_and_then_changes(run):
    _, hub, gate = live.site(run)

    async def browse():
        await hub.update()
        stream = Stream(hub, gate)
        assert (await stream.next())[0] == "hello"
        first = await stream.sections(9)
        assert "40.0 ms" in first["now"]
        live.write_steps(run, [live.live_step(60 + at, 20_000.0, version=1) for at in range(60)])
        waiting = asyncio.create_task(stream.sections(3))
        await asyncio.sleep(0)
        await hub.update()
        changed = await waiting
        assert set(changed) == {"now", "steps", "ranks"}
        assert "20.0 ms" in changed["now"]
        # Who comes back gets what came since.
        HISTORY.append(run, JobEvent(what="checkpoint", step=100))
        seen = hub.jobs["run"].sections.newest
        await hub.update()
        again = Stream(hub, gate, seen)
        await again.next()
        assert "history" in await again.sections(1)

    asyncio.run(browse())


def test_streams_end_with_the_server(run):
    _, hub, gate = live.site(run)

    async def browse():
        await hub.update()
        stream = Stream(hub, gate)
        await stream.next()
        await stream.sections(9)
        waiting = asyncio.create_task(stream.next())
        await asyncio.sleep(0)
        hub.end()
        with pytest.raises(StopAsyncIteration):
            await waiting

    asyncio.run(browse())


def test_the_reason_of_a_failed_search_is_shown(run, page):
    """The Run is invalid; the search process writes the reason to it."""
    (run / "advice.json").unlink()
    (run / "run.json").write_text("{")

    async def search():
        await page.hub.start_search(page.hub.jobs["run"])
        assert page.hub.jobs["run"].job.is_searching
        await page.hub.jobs["run"].search
        await page.hub.update()

    page.client.portal.call(search)
    text = page.text()
    assert "No proposal was possible" in text
    assert "is not a valid run.json" in text
