"""Traces recorded on real GPUs by other projects: every answer holds its contract, and finds what is known of each job.

The sets and their truths are described in the README beside them; here they are read where they lie.
"""

import functools
import gzip
import json
import re
import shlex
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import msgspec
import numpy as np
import pytest

from esprof import load
from esprof.analyzers.diagnosis import diagnose
from esprof.analyzers.finding import ACTIVITIES
from esprof.analyzers.ops.over_ranks import Asked, ops_run
from esprof.core.types import NS_PER_MS, NS_PER_S
from esprof.replay.building.build import build
from esprof.replay.dfg import Cls, LaneKind
from esprof.replay.engine.timeline import replay
from esprof.replay.ranks.blame import Blame
from esprof.replay.replayed import Replayed, answer
from esprof.replay.rules import ALL_RULES
from esprof.replay.runtime_names import copies_across_bus
from esprof.replay.steps import step_boundaries
from esprof.replay.whatif.graph import edits
from esprof.replay.whatif.scenario import Declined
from esprof.replay.whatif.terms.straggler import fix_stragglers
from tests.cases.command_line import esprof
from tests.cases.findings import ungrouped

TRACES = Path(__file__).resolve().parents[3] / "shared" / "traces"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(not TRACES.is_dir(), reason=f"{TRACES} is absent: these are no part of the project"),
]

SLEEP = ("torchrec-4xv100/long_a2a_1", "torchrec-4xv100/sleep_after_backward")
"""Rank 2 sleeps for a second in each step; in the other torchrec runs for 20 ms."""

TORCHREC = (*SLEEP, *(f"torchrec-4xv100/{name}" for name in ("long_a2a_3", "long_a2a_5", "long_a2a_5_qcomm")))
MEGATRON = "megatron-tp8"
LOADER = "dataloader-w0"
NANOSECONDS = "hta/rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz"
SINGLE = (LOADER, "hta/df_index_resolver.json.gz", "hta/nccl_data.json.gz", NANOSECONDS)
SETS = (MEGATRON, *TORCHREC, *SINGLE)

RESOURCES = ("gpu", "cpu", "network")
SCENARIOS = (
    "gpu=1x",
    *(f"{resource}={factor}x" for resource in RESOURCES for factor in ("0.5", "2")),
    "straggler=fix",
    "data=0",
    "overlap=perfect",
)


@functools.cache
def replayed(name):
    return Replayed.of(load(TRACES / name))


@functools.cache
def replay_of(name):
    return answer(replayed(name), SCENARIOS)


@functools.cache
def diagnosis_of(name):
    return diagnose(replayed(name))


def predicted_us(name, spec):
    (scenario,) = [scenario for scenario in replay_of(name).what_if if scenario.spec == spec]
    return scenario.predicted_us


def findings(name, family):
    """Causes, their symptoms and uncertain findings of one family."""
    causes = diagnosis_of(name).findings
    symptoms = [symptom for finding in causes for symptom in finding.symptoms]
    return [one for one in (*causes, *symptoms, *diagnosis_of(name).uncertain) if one.id.startswith(family)]


every_set = pytest.mark.parametrize("name", SETS)


# The contract

REPLAY_KEYS = {
    "": "world_size steps prediction explained_pct critical_path what_if coverage graph timing_s warnings",
    "steps": "step measured_us replayed_us error_pct",
    "prediction": "fit_steps held_out",
    "prediction.held_out": "step measured_us predicted_us error_pct",
    "critical_path": "span_us classes by_rank",
    "critical_path.classes": "compute copy communication wait cpu host_gap data launch allocator contention residual",
    "critical_path.by_rank": "rank us pct",
    "what_if": "spec predicted_us speedup low_us high_us answered reason",
    "graph": "nodes edges",
    "timing_s": "read build replay",
}
DIAGNOSE_KEYS = {
    "": "verdict findings joint_saving_us uncertain",
    "findings": "id title severity ranks saving_us saving_pct confidence evidence advice what_if command is_bound symptoms",
}


def holds(value, keys):
    """Assert that `value` has all `keys`: a path into it -> the names that must stand there."""
    for path, names in keys.items():
        found = [value]
        for part in filter(None, path.split(".")):
            found = [item for one in found for item in (one[part] if isinstance(one[part], list) else [one[part]])]
        for one in found:
            assert set(names.split()) <= set(one), path


def as_json(struct):
    return json.loads(msgspec.json.encode(struct))


@every_set
def test_replay_answers_with_every_field(name):
    value = as_json(replay_of(name))
    assert next(iter(value.items())) == ("schema", "esprof.replay/2")
    holds(value, REPLAY_KEYS)
    assert set(value["critical_path"]["classes"]) == set(REPLAY_KEYS["critical_path.classes"].split())
    assert value["steps"]
    assert value["graph"]["nodes"] > len(value["steps"])
    for scenario in value["what_if"]:
        assert (scenario["predicted_us"] is None) == (not scenario["answered"])
        assert (scenario["reason"] is None) == scenario["answered"]


@every_set
def test_diagnose_answers_with_every_field(name):
    value = as_json(diagnosis_of(name))
    assert next(iter(value.items())) == ("schema", "esprof.diagnose/2")
    holds(value, DIAGNOSE_KEYS)
    causes = diagnosis_of(name).findings
    scenarios = {one.what_if for cause in causes for one in (cause, *cause.symptoms) if one.what_if}
    together_ns = replayed(name).pricer.saving_ns(",".join(sorted(scenarios))) if scenarios else 0
    assert value["joint_saving_us"] <= (together_ns or 0) / 1000 * 1.001
    assert value["verdict"].endswith(".")


@pytest.mark.parametrize(("verb", "keys"), [("replay", REPLAY_KEYS), ("diagnose", DIAGNOSE_KEYS)])
def test_the_command_answers_as_the_library_does(verb, keys):
    name = SLEEP[0]
    command = [Path(sys.executable).parent / "esprof", verb, TRACES / name, "--json"]
    command += [part for spec in SCENARIOS for part in ("--what-if", spec)] if verb == "replay" else []
    result = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    value = json.loads(result.stdout)
    holds(value, keys)
    known = as_json(replay_of(name) if verb == "replay" else diagnosis_of(name))
    assert {key: value[key] for key in value if key != "timing_s"} == {k: known[k] for k in known if k != "timing_s"}
    assert result.stderr == ""


@every_set
def test_the_command_of_a_finding_gives_its_price(name):
    for finding in diagnosis_of(name).findings:
        is_without = finding.id[3] in "89" or finding.id in ("ESP407", "ESP703", "ESP704")
        is_without |= finding.id == "ESP501" and not finding.saving_us  # Outlier steps alone.
        assert (finding.command is None) == is_without, "what costs no usual step any time has no price"
        if finding.command is None:
            continue
        done = esprof(*shlex.split(finding.command)[1:], "--json", "--max-error", 1000)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout)
        (scenario,) = answer["what_if"]
        alone_us = answer["step_us"] - scenario["predicted_us"]
        (same,) = (one for one in ungrouped(replayed(name)) if one.what_if == finding.what_if and one.id == finding.id)
        if finding.id != "ESP405":  # At most what the GPU idles.
            assert alone_us == pytest.approx(same.saving_us, abs=0.01)
        # Other causes may save some of the same time, which is counted once.
        assert 0 < finding.saving_us <= min(alone_us, same.saving_us) + 0.01


# What must hold of any run


@every_set
def test_the_critical_path_is_a_partition_of_the_steps(name):
    path = replay_of(name).critical_path
    assert sum(path.classes.values()) == pytest.approx(path.span_us, abs=0.01)
    assert sum(share.us for share in path.by_rank) == pytest.approx(path.span_us, abs=0.01)
    assert min(path.classes.values()) >= 0
    assert path.span_us * 1000 <= wall_ns(name) + 1


def wall_ns(name):
    """From when the first rank enters a stretch of steady steps to when the last one leaves it, summed over stretches."""
    mine = replayed(name)
    shift = {rank: mine.built.clocks.correction_ns(rank) for rank in mine.run.ranks}
    borders = [
        {
            step: (begin + shift[rank], end + shift[rank])
            for step, (begin, end) in step_boundaries(mine.run, rank).items()
        }
        for rank in mine.run.ranks
    ]
    kept = mine.steps.steady
    breaks = [0, *(i + 1 for i, (one, other) in enumerate(pairwise(kept)) if other != one + 1), len(kept)]
    return sum(
        max(of[kept[last - 1]][1] for of in borders) - min(of[kept[first]][0] for of in borders)
        for first, last in pairwise(breaks)
    )


@every_set
def test_the_classes_of_a_step_sum_to_it_exactly(name):
    for part in diagnosis_of(name).breakdown:
        values = [getattr(part, column) for column in ACTIVITIES]
        assert min(values) >= 0
        assert round(sum(values), 3) == part.step_us


def _inferred(dfg, rank):
    """(starts, ends) of work from before the window that was not recorded, ns."""
    nodes = np.flatnonzero((dfg.rank == rank) & dfg.on(LaneKind.STREAM) & (dfg.event < 0) & dfg.of(Cls.COMPUTE))
    start = dfg.t0_ns + dfg.recorded_ns[nodes]
    return start, start + dfg.dur_ns[nodes]


@every_set
def test_the_breakdown_agrees_with_holistic_trace_analysis(name):
    """Time in which kernels compute, nothing but transfers or copies run, and the GPU is idle: unions of the recorded rows,
    clipped to the steps. Here memsets and copies on the device are work, as in what-ifs. A transfer of the graph ends at one
    moment, where recorded ends lie some tens of microseconds apart. Inferred work from before the window is added."""
    mine = replayed(name)
    apart = 1 if len(mine.run.ranks) == 1 else 50
    for part in diagnosis_of(name).breakdown:
        rows, borders = mine.run.events(part.rank), step_boundaries(mine.run, part.rank)
        spans = [borders[step] for step in mine.steps.steady]
        begin = rows.ints("start_ns")
        on_gpu = (rows.ints("stream") >= 0) & rows.is_kind("kernel", "collective", "memcpy", "memset")
        codes, names = rows.codes("name")
        across_bus = np.array([*(copies_across_bus(text) for text in names), False])[codes]
        kinds = {
            "compute": on_gpu & ~rows.is_kind("collective") & ~across_bus,
            "transfers": on_gpu & rows.is_kind("collective"),
            "all": on_gpu,
        }
        inferred, until = _inferred(mine.built.dfg, part.rank)
        begin, ends = np.append(begin, inferred), np.append(begin + rows.ints("dur_ns"), until)
        computes = {"compute": True, "transfers": False, "all": True}
        kinds = {kind: np.append(mask, np.full(len(inferred), computes[kind])) for kind, mask in kinds.items()}
        took = {kind: _union_us(begin[rows_of], ends[rows_of], spans) for kind, rows_of in kinds.items()}
        both = _union_us(*(at[kinds["compute"] | kinds["transfers"]] for at in (begin, ends)), spans)
        assert part.compute == pytest.approx(took["compute"], abs=1)
        assert part.exposed_communication + part.wait == pytest.approx(both - took["compute"], abs=apart)
        assert part.copy == pytest.approx(took["all"] - both, abs=apart)
        assert part.input_stall + part.host + part.idle == pytest.approx(part.step_us - took["all"], abs=apart)


def _union_us(begin, end, spans):
    """How long any of these runs within a mean one of `spans`, µs."""
    total = 0
    for first, last in spans:
        reached = first
        for one, other in sorted(zip(begin.tolist(), end.tolist(), strict=True)):
            total += max(0, min(other, last) - max(one, reached))
            reached = max(reached, min(other, last))
    return total / len(spans) / 1e3


@every_set
def test_replay_reproduces_every_steady_state_step(name):
    found = replay_of(name)
    assert max(abs(step.error_pct) for step in found.steps) <= 0.1
    assert abs(found.strict_error_pct) <= 1
    assert found.explained_pct >= 75


@every_set
def test_nothing_faster_changes_nothing(name):
    assert predicted_us(name, "gpu=1x") == replay_of(name).step_us


@every_set
@pytest.mark.parametrize("resource", RESOURCES)
def test_more_of_a_resource_is_never_slower(name, resource):
    less, more = predicted_us(name, f"{resource}=0.5x"), predicted_us(name, f"{resource}=2x")
    if less is None:
        assert more is None
        assert resource == "network"  # Where one rank has no peers.
    else:
        assert less >= replay_of(name).step_us >= more


# What is known of these jobs


@pytest.mark.parametrize("name", TORCHREC)
def test_the_rank_that_sleeps_is_named(name):
    assert [finding.ranks for finding in findings(name, "ESP2")] == [(2,)]
    # Each step loses time by it, so it is certain, though two steps that differ by 18 % cannot show how much.
    assert [finding.ranks for finding in diagnosis_of(name).findings if finding.id.startswith("ESP2")] == [(2,)]


@pytest.mark.parametrize("name", SLEEP)
def test_a_sleep_of_a_second_is_priced(name):
    (finding,) = findings(name, "ESP2")
    assert finding.id == "ESP201"
    assert 0.9e6 <= finding.saving_us <= 1.1e6
    assert diagnosis_of(name).findings[0] == finding


@pytest.mark.parametrize("name", SLEEP)
def test_without_the_sleep_every_step_is_a_second_shorter(name):
    """Also the step in which the peers' allocators wait, and the one in which they call it under the waiting."""
    mine = replayed(name)
    mended = replay(fix_stragglers(mine.pricer.blame, [2]).dfg).step_ns()
    gains = (mine.timeline.step_ns() - mended) / NS_PER_S
    assert len(gains) == 3
    assert all(0.95 <= gain <= 1.05 for gain in gains)


@pytest.mark.parametrize("off", ["rendezvous", "syncs_by_time", "stream_waits"])
def test_without_one_kind_of_rule_the_saving_of_the_sleep_is_missed(off):
    run = load(TRACES / SLEEP[0])
    whole, without = (build(run, rules=rules) for rules in (ALL_RULES, replace(ALL_RULES, **{off: False})))
    gains = (
        replay(whole).step_ns() - replay(fix_stragglers(Blame(whole, whole.marks.steps), [2]).dfg).step_ns()
    ) / NS_PER_S
    assert min(gains) >= 0.95
    # A self-replay shows nothing of it.
    assert replay(without).step_ns() == pytest.approx(replay(whole).step_ns(), rel=1e-3)
    try:
        mended = fix_stragglers(Blame(without, without.marks.steps), [2]).dfg
    except Declined:
        return
    assert min(replay(without).step_ns() - replay(mended).step_ns()) < 0.5 * NS_PER_S


@pytest.mark.parametrize("name", TORCHREC[2:])
def test_without_allocator_calls_the_outlier_is_a_step_like_the_others(name):
    mine = replayed(name)
    (outlier,) = mine.steps.left_out
    at = mine.steps.all.index(outlier)
    dfg = mine.built.dfg
    mended = replay(edits.shorten(dfg, dfg.of(Cls.ALLOCATOR), 0)).step_ns()
    assert mine.measured_ns[at] > 2 * mine.pricer.step_ns
    assert mended[at] == pytest.approx(mine.pricer.step_ns, rel=0.12)


@pytest.mark.parametrize("name", TORCHREC[2:])
def test_a_step_stopped_by_the_allocator_is_left_out_and_named(name):
    (left_out,) = replay_of(name).left_out
    assert "allocator" in left_out.reason
    assert left_out.measured_us > 2 * replay_of(name).step_us
    assert findings(name, "ESP5")


def test_no_rank_is_blamed_if_eight_ranks_stall_at_different_times():
    # Their CPUs stop 228 times, 441 to 478 ms on each rank: the two that come last most often do no more than the others.
    assert not findings(MEGATRON, "ESP2")
    assert replayed(MEGATRON).pricer.price("balance=fix").saving_ns > 0.05 * replayed(MEGATRON).pricer.step_ns
    path = replay_of(MEGATRON).critical_path
    assert max(path.by_rank, key=lambda share: share.us).rank == 0
    starved, host = findings(MEGATRON, "ESP4")
    assert (starved.id, starved.ranks, host.id) == ("ESP404", tuple(range(8)), "ESP401")
    assert starved.title.endswith("ranks 0, 6 delay the others most")
    assert all(360 * NS_PER_MS < starved.evidence["stalled"].of(rank) < 480 * NS_PER_MS for rank in range(8))


def test_a_loader_without_workers_is_named_and_priced():
    (finding,) = findings(LOADER, "ESP1")
    assert (finding.id, finding.ranks) == ("ESP101", (0,))
    (part,) = diagnosis_of(LOADER).breakdown
    assert 57_000 <= part.input_stall <= 73_000
    assert diagnosis_of(LOADER).findings[0] == finding
    assert 50_000 <= replay_of(LOADER).step_us - predicted_us(LOADER, "data=0") <= 73_000


def test_a_full_launch_queue_does_not_hide_a_busy_gpu():
    """Its GPU works 93.7 ms of each 95.7 ms: at half the speed a step cannot take less than twice that."""
    steps = replayed(NANOSECONDS)
    slower = steps.pricer.price_edited(edits.scale(steps.built.dfg, steps.built.dfg.on(LaneKind.STREAM), 0.5)).step_ns
    assert steps.steps.steady == (102, 103, 104, 105)
    assert min(slower[1:]) >= 187 * NS_PER_MS
    assert findings(NANOSECONDS, "ESP4") == []


@pytest.mark.parametrize("name", SINGLE[1:3])
def test_a_trace_of_one_rank_of_two_reports_what_is_unknown(name):
    assert replay_of(name).coverage.missing_ranks
    assert {finding.id for finding in findings(name, "ESP9")} == {"ESP902", "ESP903"}
    assert not next(s for s in replay_of(name).what_if if s.spec == "straggler=fix").answered


# A clock that is wrong


def on_hosts_of_their_own(source, target, ahead_us):
    """Copy traces, each to a host of its own, with clocks ahead by `ahead_us[rank]`."""
    for file in sorted(source.iterdir()):
        content = json.loads(gzip.decompress(file.read_bytes()))
        rank = content["distributedInfo"]["rank"]
        content["host_name"] = f"node{rank}"
        for row in content["traceEvents"]:
            if row.get("ph") == "X":
                row["ts"] += ahead_us.get(rank, 0)
        (target / f"rank{rank}.json").write_text(json.dumps(content))
    return load(target)


@pytest.mark.parametrize(("name", "rank"), [(TORCHREC[2], 1), (MEGATRON, 6)])
def test_a_clock_20_ms_ahead_is_corrected(tmp_path, name, rank):
    skewed = Replayed.of(on_hosts_of_their_own(TRACES / name, tmp_path, {rank: 20_000}))
    found = answer(skewed)
    (warning,) = [warning for warning in found.warnings if warning.code == "clock-shifted"]
    assert warning.ranks == (rank,)
    assert skewed.built.clocks.correction_ns(rank) == pytest.approx(-20 * NS_PER_MS, abs=NS_PER_MS / 10)
    assert max(abs(step.error_pct) for step in found.steps) <= 1
    assert abs(found.strict_error_pct) <= 1
    assert found.step_us == pytest.approx(replay_of(name).step_us, rel=0.01)


@pytest.mark.parametrize("name", ["hta/df_index_resolver.json.gz", NANOSECONDS])
def test_without_profiler_steps_the_optimizer_gives_the_same_steps(tmp_path, name):
    """From the end of one optimizer's step to that of the next is as long as a step, but for what scatters."""
    with gzip.open(TRACES / name) as file:
        document = json.load(file)
    document["traceEvents"] = [row for row in document["traceEvents"] if "ProfilerStep" not in row.get("name", "")]
    (tmp_path / "trace.json").write_text(json.dumps(document))
    bare, answer = load(tmp_path / "trace.json"), replayed(name).run
    assert "steps-by-optimizer" in [warning.code for warning in bare.warnings]
    found, wanted = (run.steps(run.ranks[0]).ints("dur_ns") for run in (bare, answer))
    assert len(found) == len(wanted)
    assert np.median(found[1:]) == pytest.approx(np.median(wanted[1:]), rel=0.05)


# Operations


@every_set
def test_own_times_of_operations_sum_to_those_of_all(name):
    found = ops_run(load(TRACES / name), Asked(top=10_000))
    assert found.found == len(found.ops)
    assert sum(one.own_cpu_us for one in found.ops) == pytest.approx(found.cpu_us, rel=1e-4)
    assert sum(one.own_gpu_us for one in found.ops) + found.gpu_outside_us == pytest.approx(found.gpu_us, rel=1e-4)
    assert all(one.own_cpu_us <= one.total_cpu_us for one in found.ops)
    assert all(one.own_gpu_us <= one.total_gpu_us for one in found.ops)


@pytest.mark.parametrize("name", SINGLE)
def test_a_step_is_as_long_in_the_table_of_operations_as_in_the_diagnosis(name):
    table, diagnosis = ops_run(load(TRACES / name), Asked(top=1)), diagnosis_of(name)
    assert (table.steps, table.step_us) == (diagnosis.steps, diagnosis.step_us)


def test_megatrons_all_reduces_take_what_other_tools_say_and_name_the_rank_waited_for():
    (all_reduce,) = ops_run(load(TRACES / MEGATRON), Asked(top=1)).ops
    took_ms = {rank.rank: rank.own_gpu_us / 1_000 for rank in all_reduce.by_rank}
    assert (took_ms[0], took_ms[6]) == (pytest.approx(241, abs=1), pytest.approx(264, abs=1))
    assert all(412 < took < 496 for rank, took in took_ms.items() if rank not in (0, 6))
    assert all_reduce.differs == 0


def test_the_loader_takes_what_the_traces_own_view_shows():
    (loader,) = ops_run(load(TRACES / LOADER), Asked(pattern=re.compile("DataLoader"))).ops
    assert loader.kind == "loader"
    assert loader.total_cpu_us / 1_000 == pytest.approx(np.mean([68.8, 73.4, 71.4, 70.8, 62.6]), abs=0.1)
