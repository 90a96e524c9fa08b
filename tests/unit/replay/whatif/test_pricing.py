"""What-if answers: bounds, the known error of the run, and declined questions."""

from dataclasses import replace
from types import MappingProxyType

import numpy as np
import pytest

from esprof.analyzers import diagnose
from esprof.core.errors import UsageError
from esprof.replay import Replayed, answer
from esprof.replay.building.build import build
from esprof.replay.ranks.blame import Blame
from esprof.replay.whatif import pricing
from esprof.replay.whatif.error import model_errors
from esprof.replay.whatif.pricing import what_if
from esprof.replay.whatif.scenario import Declined
from esprof.replay.whatif.terms.straggler import fix_stragglers
from tests.cases.graph import call, ddp_rank, launched, load_call, nccl, nccl_ranks, op, run_of, step

MS = 1000.0


def uneven_run(last: float):
    """One rank, six steps of one operation: 10 ms each, the last two `last` ms."""
    rows, now = [], 0.0
    for number in range(6):
        length = (10 if number < 4 else last) * MS
        rows += [step(number, now, now + length), op("aten::mm", now, length)]
        now += length
    return run_of({0: rows})


def test_a_scenario_has_a_timeline_where_it_has_a_price():
    pricer = Replayed.of(uneven_run(10)).pricer
    assert pricer.timeline("cpu=2x").step_ns().tolist() == [5 * 10**6] * 6
    with pytest.raises(Declined, match="rank 9 is not in this run"):
        pricer.timeline("rank9.cpu=2x")
    with pytest.raises(Declined, match="replay is off by"):
        Replayed.of(half_explained()).pricer.timeline("cpu=2x")


def test_perfect_overlap_waits_for_late_ranks_but_not_for_communication():
    # Rank 1 arrives at 40 ms, communication takes 4 ms, and 6 ms of work follow.
    run = run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})
    (answer,) = what_if(run, build(run), ["overlap=perfect"])
    assert answer.predicted_us == pytest.approx(46 * MS)
    assert "bound" in (answer.note or "")


def test_perfect_overlap_cannot_beat_the_network():
    run = run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})
    slow, hidden = what_if(run, build(run), ["network=0.05x", "overlap=perfect,network=0.05x"])
    assert hidden.predicted_us == pytest.approx(80 * MS)
    assert slow.predicted_us == pytest.approx(126 * MS)


def test_perfect_overlap_twice_is_perfect_overlap():
    run = run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})
    spec = "network=0.05x,overlap=perfect"
    once, twice = what_if(run, build(run), [spec, f"{spec},overlap=perfect"])
    assert once.predicted_us == twice.predicted_us


def ahead_of_its_gpu(communication: float) -> list:
    """Five steps of 2 ms on the CPU, which never waits for its GPU: 9 ms of compute a step, and two concurrent all-reduces
    of `communication` ms, one after the other on two streams."""
    rows = []
    for number in range(5):
        at, kernels, communications = number * 2 * MS, 20 + number * 9 * MS, 30 + number * 2 * communication * MS
        rows += [step(number, at, at + 2 * MS), op("aten::mm", at, 2 * MS)]
        rows += launched("gemm", at + 10, kernels, 9 * MS, 3 * number + 1)
        for stream in (0, 1):
            begin, correlation = communications + stream * communication * MS, 3 * number + 2 + stream
            rows += nccl(at + 40 + 10 * stream, begin, begin + communication * MS, correlation)
            rows[-1].args.stream = rows[-1].tid = 20 + stream
    return rows


@pytest.mark.parametrize("communication", [2, 6])
def test_perfect_overlap_is_neither_faster_than_the_gpu_nor_slower_than_none(communication):
    run = run_of({rank: ahead_of_its_gpu(communication) for rank in (0, 1)})
    (found,) = Replayed.of(run, max_error_pct=1000).pricer.answers(["overlap=perfect"])
    assert found.predicted_us == 2 * MS


def test_streams_apart_need_collectives_of_several_kinds_on_one():
    run = run_of(nccl_ranks())
    (answer,) = what_if(run, build(run), ["streams=apart"])
    assert not answer.answered
    assert "several kinds" in answer.reason


def test_perfect_overlap_needs_communication():
    (answer,) = what_if(uneven_run(10), build(uneven_run(10)), ["overlap=perfect"])
    assert not answer.answered
    assert "no communication" in (answer.reason or "")


def test_the_error_known_for_the_run_is_that_of_its_unseen_steps():
    # The first step is left out; fitted on steps 1 and 2 (10 ms), steps 3 to 5 take 10, 12 and 12 ms.
    found = answer(uneven_run(12), ["cpu=2x"])
    assert found.known_error_pct == pytest.approx(100 * (1 - 30 / 34), abs=0.01)


def test_where_no_steps_can_be_held_out_the_answer_says_that_its_error_is_unknown():
    run = run_of({0: [step(1, 0, 10), op("a", 0, 10), step(2, 10, 20), op("a", 10, 10)]})
    found = answer(run, ["cpu=2x"])
    assert len(found.prediction.held_out) == 1
    assert "held-out" in (found.what_if[0].note or "")
    assert answer(uneven_run(10), ["cpu=2x"]).what_if[0].note is None


def half_explained():
    """Five steps of 10 ms, half of each in a call that waits for an unknown cause."""
    rows = []
    for number in range(6):
        begin = 10 * MS * number
        rows += [step(number, begin, begin + 10 * MS), op("a", begin, 5 * MS)]
        rows += [call("cudaStreamSynchronize", begin + 5 * MS, 5 * MS, number)]
    return run_of({0: rows})


def test_a_run_that_replay_cannot_predict_gets_no_what_if_and_no_priced_finding():
    (declined,) = answer(half_explained(), ["cpu=2x"]).what_if
    assert not declined.answered
    assert "off by 49.8 %" in (declined.reason or "")
    (allowed,) = answer(Replayed.of(half_explained(), max_error_pct=50), ["cpu=2x"]).what_if
    assert allowed.answered
    # The interval holds the known error.
    assert allowed.high_us >= allowed.predicted_us * 1.4
    assert "Replay cannot predict savings: replay is off by 49.8 % on average" in diagnose(half_explained()).verdict
    assert "cannot be said" not in diagnose(half_explained(), max_error_pct=50).verdict


def test_steps_that_scatter_say_nothing_against_the_graph_but_widen_the_interval():
    result = answer(uneven_run(20), ["cpu=2x"])
    assert result.known_error_pct == pytest.approx(40)
    (found,) = result.what_if
    # Steps of 5, 5, 5, 10 and 10 ms: 2.78 standard errors about their mean, with four degrees of freedom.
    assert found.predicted_us == pytest.approx(7 * MS)
    assert found.high_us - found.predicted_us == pytest.approx(
        2.78 * np.std([5, 5, 5, 10, 10], ddof=1) / np.sqrt(5) * MS, rel=0.1
    )


def assume(monkeypatch, errors, underestimates=MappingProxyType({})):
    """What is known of the errors of what-ifs."""
    monkeypatch.setattr(model_errors, "known_errors", lambda: errors)
    monkeypatch.setattr(model_errors, "known_underestimates", lambda: underestimates)


def test_a_gain_that_is_the_same_in_steps_that_scatter_is_known_better_than_the_steps(monkeypatch):
    assume(monkeypatch, {"cpu": {"kernel": 0.0}})
    rows = []
    for number, length in enumerate((10, 10, 10, 10, 20, 20)):
        begin = 20 * MS * number
        rows += [
            step(number, begin, begin + length * MS),
            op("a", begin, 4 * MS),
            op("b", begin + 4 * MS, (length - 4) * MS),
        ]
    (found,) = answer(run_of({0: rows}), ["kernel[^a$]=2x"]).what_if
    assert (found.saving_us, found.saving_low_us, found.saving_high_us) == pytest.approx((2 * MS, 2 * MS, 2 * MS))
    assert found.high_us - found.low_us > 5 * MS


def loading(took_ms):
    """One rank that waits for a batch of so many ms in each step, and then computes for 20 ms."""
    rows, now = [], 0.0
    for number, wait in enumerate(took_ms):
        length = (wait + 20) * MS
        rows += [step(number, now, now + length), load_call(now, now + wait * MS, worker=False)]
        rows += [op("aten::mm", now + wait * MS, 20 * MS)]
        now += length
    return run_of({0: rows})


@pytest.mark.parametrize(
    ("took_ms", "is_certain"), [((1, 30, 8, 18), True), ((1, 0, 60, 0, 18), True), ((1, 0, 0, 60, 0), False)]
)
def test_what_several_steps_save_is_certain_however_much_it_differs(monkeypatch, took_ms, is_certain):
    # Student's interval contains zero in each case. One slow step of a window may be the only one of the job.
    assume(monkeypatch, {"cpu": {"data": 0.01, "cpu": 0.01}})
    (found,) = answer(loading(took_ms), ["data=0"]).what_if
    assert (found.saving_low_us > 0) == is_certain
    assert found.saving_us - found.saving_high_us < -found.saving_us


def test_what_may_take_longer_is_certain_by_students_interval_alone(monkeypatch):
    assume(monkeypatch, {"cpu": {"data": 0.01, "cpu": 0.01}})
    both = "data=0,cpu=0.9x"
    (found,) = answer(loading((1, 30, 8, 18)), [both]).what_if
    assert found.saving_low_us < 0 < found.saving_us


def test_the_interval_of_a_change_includes_the_known_error_of_such_changes(monkeypatch):
    assume(monkeypatch, {"cpu": {"cpu": 0.03, "network": 0.04}})
    (changed,) = answer(uneven_run(10), ["cpu=2x"]).what_if
    assert (changed.saving_low_us, changed.saving_high_us) == pytest.approx((4.7 * MS, 5.3 * MS))
    (unchanged,) = answer(uneven_run(10), ["cpu=1x"]).what_if
    assert (unchanged.saving_low_us, unchanged.saving_high_us) == pytest.approx((-0.3 * MS, 0.3 * MS))


def test_a_saving_may_exceed_its_prediction_by_as_much_as_others_did(monkeypatch):
    assume(monkeypatch, {"cpu": {"cpu": 0.03}}, underestimates={"cpu": 0.2})
    (found,) = answer(uneven_run(10), ["cpu=2x"]).what_if
    assert (found.saving_low_us, found.saving_high_us) == pytest.approx((4.7 * MS, 7 * MS))


@pytest.mark.parametrize("spec", ["cpu=1x", "network=1x", "rank1.cpu=1x", "collective[all]=1x"])
def test_a_factor_of_one_is_the_run_itself(spec):
    found = answer(run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}), [spec])
    assert found.what_if[0].predicted_us == found.step_us


@pytest.mark.parametrize("other", ["rank1.cpu=2x", "cpu=3x", "rank0.cpu=4x,rank1.cpu=2x", "network=2x", "data=0"])
def test_the_order_of_terms_does_not_matter(other):
    """The rank becomes as fast as its peers and then twice as fast, in either order of the terms."""
    run = run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})
    dfg = build(run)
    terms = ["straggler=fix", *other.split(",")]
    one, two = what_if(run, dfg, [",".join(terms), ",".join(reversed(terms))])
    assert (one.predicted_us, one.note, one.reason) == (two.predicted_us, two.note, two.reason)


def test_balanced_ranks_share_the_work_out():
    # Rank 1 comes at 40 ms, rank 0 at 30 ms: with 5 ms of the gap each, both at 35 ms.
    run = run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})
    (answer,) = what_if(run, build(run), ["balance=fix"])
    assert answer.predicted_us == pytest.approx(45 * MS, abs=20)


def test_a_job_of_one_rank_has_nothing_to_balance():
    (answer,) = what_if(uneven_run(10), build(uneven_run(10)), ["balance=fix"])
    assert not answer.answered


def test_a_mended_rank_can_be_made_faster_still():
    run = run_of({0: ddp_rank(), 1: ddp_rank(slow=10)})
    spec = "rank0.cpu=4x,rank1.cpu=2x,straggler=fix"
    (answer,) = what_if(run, build(run), [spec])
    # Rank 1 arrives after half of 30 ms; 4 ms of communication, then half of the gap of 1 ms and of 5 ms.
    assert answer.predicted_us == pytest.approx(22 * MS, abs=20)


def test_a_shorter_delay_is_a_gain_though_no_work_gets_shorter():
    # The marker takes no time: it waits for room on a GPU that the large kernel fills up to 420 µs. The tiny one shows how
    # long a launch takes.
    rows = [
        *launched("large", 0, 10, 410, 1),
        *launched("tiny", 8, 18, 2, 4, stream=9),
        *launched("marker", 20, 490, 0, 2, stream=8),
        call("cudaStreamSynchronize", 30, 465, 3),
    ]
    run = run_of({0: [step(1, 0, 600), op("aten::mm", 0, 30), op("aten::item", 496, 104), *rows]})
    dfg = build(run)
    recorded, shorter = what_if(run, dfg, ["kernel[marker]=1x", "kernel[marker]=2x"])
    assert dfg.contended.sum() == 1
    assert (recorded.predicted_us, shorter.predicted_us) == (600, pytest.approx(420, abs=10))


def test_numbers_of_steps_may_be_large():
    rows = {rank: ddp_rank(slow=10 * rank) for rank in (0, 1)}
    for mine in rows.values():
        mine[0].name = "ProfilerStep#999999999"
    run = run_of(rows)
    (answer,) = what_if(run, build(run), ["straggler=fix"])
    assert answer.predicted_us == pytest.approx(40 * MS, abs=10)


def allocating_ranks(late: float = 2000.0) -> dict:
    """Rank 1 comes `late` µs late to its all-reduce; rank 0, which waits for it from 1,110 µs on, asks for memory from 1,200
    to 2,700 µs, and rank 1 after."""
    end = 3160.0

    def rank(begins: float, arrives: float, asks: float, takes: float) -> list:
        return [
            step(1, 0, end + 1000),
            op("aten::mm", begins, arrives - begins),
            *nccl(arrives, arrives + 20, end, 1),
            call("cudaMalloc", asks, takes),
            call("cudaStreamSynchronize", 3120, 50, 2),
            op("aten::item", 3170, 990),
        ]

    return {0: rank(0, 1090, 1200, 1500), 1: rank(0, 1090 + late, 3100, 20)}


def test_mending_a_straggler_mends_the_allocator_calls_that_wait_for_it():
    run = run_of(allocating_ranks())
    dfg = build(run)
    mended = fix_stragglers(Blame(dfg, dfg.marks.steps), [1]).dfg
    (held, own) = (
        next(n for n in range(dfg.nodes) if dfg.label(n) == "cudaMalloc" and dfg.rank[n] == r) for r in (0, 1)
    )
    assert (dfg.dur_ns[held], mended.dur_ns[held]) == (1_500_000, 20_000)
    assert mended.dur_ns[own] == dfg.dur_ns[own]


def test_an_allocator_call_keeps_its_time_outside_the_wait():
    dfg = build(run_of(allocating_ranks(late=1000)))
    held = next(n for n in range(dfg.nodes) if dfg.label(n) == "cudaMalloc" and dfg.rank[n] == 0)
    # Rank 1 comes at 2,110 µs.
    assert fix_stragglers(Blame(dfg, dfg.marks.steps), [1]).dfg.dur_ns[held] == 590_000


# One way to every price

SPECS = [
    "gpu=2x", "cpu=2x", "network=2x", "communication=0", "straggler=fix", "straggler[work]=fix", "data=0",
    "cpu=2x,network=2x", "allocator=0", "host=2x", "overlap=perfect", "storage=2x",
    "balance=fix",
]  # fmt: skip


def pricers():
    """A pricer for a job on CPUs, and one for a job on GPUs, whose rank 1 is slow."""
    for run in (run_of({0: ddp_rank(), 1: ddp_rank(slow=10)}), run_of(nccl_ranks())):
        yield Replayed.of(run).pricer


def outcome(price):
    return str(price) if isinstance(price, Declined) else (price.step_ns.tolist(), price.saving_ns, price.notes)


@pytest.mark.parametrize("pricer", list(pricers()), ids=["gloo", "nccl"])
def test_several_scenarios_at_once_have_the_prices_that_each_has_alone(pricer):
    together = [outcome(price) for price in replace(pricer, _known={}).prices(SPECS)]
    alone = [outcome(replace(pricer, _known={}).prices([spec])[0]) for spec in SPECS]
    assert together == alone
    assert len({str(one) for one in together}) > 4


def test_no_scenario_is_replayed_twice_however_it_is_written(monkeypatch):
    pricer = replace(next(pricers()), _known={}, max_error_pct=1000)
    pricer.prices(["cpu=2x", "network=2x,cpu=2x"])
    monkeypatch.setattr(pricing, "apply", lambda *_: pytest.fail("made once more"))
    spellings = ["cpu=2", "cpu=2.0X", " cpu = 2x", "cpu=2x,network=2x", "network=2.0x, cpu=2"]
    assert len({outcome(price)[1] for price in pricer.prices(spellings)}) == 2
    answers = pricer.answers(["cpu=2x"])
    assert answers[0].answered


def test_time_removed_from_one_rank_is_not_removed_from_another():
    rows = {rank: ddp_rank(slow=10 * rank) for rank in (0, 1)}
    pricer = Replayed.of(run_of(rows)).pricer
    assert isinstance(pricer.prices(["rank7.data=0"])[0], Declined)
    assert pricer.saving_ns("rank0.cpu=2x") < pricer.saving_ns("rank1.cpu=2x")


def test_a_kind_of_straggler_that_nobody_knows_is_a_usage_error_that_names_the_known():
    with pytest.raises(UsageError, match="host_gap, compute, cpu, allocator, work"):
        next(pricers()).price("straggler[laziness]=fix")


@pytest.mark.parametrize(("only_saves", "saving_ns"), [(True, 3.0), (False, 2.0)])
def test_changes_that_only_save_time_save_together_no_less_than_the_best_of_them(only_saves, saving_ns):
    def price(saving: float, only_saves: bool = True) -> pricing.Price:
        return pricing.Price(np.array([10.0 - saving]), saving, np.zeros(1), only_saves=only_saves)

    found = pricing._no_worse(price(2.0), [price(3.0), price(1.0, only_saves)])
    assert (found.saving_ns, found.step_ns.tolist()) == (saving_ns, [10 - saving_ns])
