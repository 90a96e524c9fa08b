"""From noted DataLoader work to the table of stages and the loads of steps."""

from itertools import pairwise

import msgspec

from esprof.run.collect.notes import RankIdentity, RankNotes, Workers
from esprof.run.collect.rolled_rows import Fetch, MarkedStage, Next, NotedPadding, NotedStep, RankRows
from esprof.run.collect.stages import loads_of_steps, stages_of
from esprof.run.raw.stages import PINNING


def taken(batch: int | None, start: int, end: int, **fields) -> Next:
    fields = {"iterator": 0, "epoch": 0, "worker": 0, "samples": 4, "tokens": None, "training": True} | fields
    return Next(batch=batch, start_ns=start, end_ns=end, workers=1, prefetch=2, **fields)


def made(batch: int, start: int, end: int, *, pid: int = 50, epoch: int = 0, samples: int | None = 4) -> Fetch:
    return Fetch(pid=pid, worker=0, epoch=epoch, batch=batch, start_ns=start, end_ns=end, samples=samples)


def noted(*workers: Workers, **kinds) -> tuple[RankNotes, RankRows]:
    who = RankIdentity(rank=0, world_size=1, host="a", pid=7, device="cpu", accelerators=0, versions={})
    return RankNotes(who, workers=list(workers)), RankRows(**kinds)


def steps(*starts: int) -> list[NotedStep]:
    """Steps that begin at `starts`; the last is a border only."""
    return [
        NotedStep(step=i + 1, start_ns=start, dur_ns=end - start, phase="plain")
        for i, (start, end) in enumerate(pairwise(starts))
    ]


def test_waits_samples_and_tokens_add_up_within_each_step():
    rows = [
        taken(0, 10, 20, tokens=400),
        taken(1, 110, 140, tokens=400),
        taken(2, 150, 190, tokens=400),
        taken(3, 195, 205),
    ]
    loads = loads_of_steps(*noted(steps=steps(100, 200, 300, 400), nexts=rows))
    assert loads["loader_wait_ns"] == [70, 10, 0]
    assert loads["samples"] == [8, 4, None]
    assert loads["tokens"] == [800, None, None]


def test_padding_adds_up_and_is_unknown_where_no_batch_tells_it():
    rows = [
        taken(0, 10, 20, padding=NotedPadding(400, 100, 4000, 1900)),
        taken(1, 30, 40, padding=NotedPadding(400, 0, None, None)),
        taken(2, 110, 120),
    ]
    loads = loads_of_steps(*noted(steps=steps(0, 100, 200), nexts=rows))
    assert loads["tokens"] == [800, None]
    assert loads["padding"] == [100, None]
    assert loads["pairs"] == [4000, None]
    assert loads["padding_pairs"] == [1900, None]


def test_a_worker_tells_padding_that_the_batch_itself_does_not_show():
    fetched = msgspec.structs.replace(made(0, 1, 9), padding=NotedPadding(64, 16, 1024, 512))
    rank = noted(
        Workers(process="p", iterator=0, start_ns=0, pids=[50]),
        steps=steps(0, 100),
        nexts=[taken(0, 10, 30)],
        fetches=[fetched],
    )
    assert loads_of_steps(*rank)["padding"] == [16]


def test_a_batch_taken_without_gradients_is_waited_for_but_not_trained_on():
    loads = loads_of_steps(*noted(steps=steps(0, 100), nexts=[taken(0, 10, 30, training=False)]))
    assert loads["loader_wait_ns"] == [20]
    assert loads["samples"] == [None]


def test_the_worker_knows_best_how_many_samples_a_batch_has():
    rank = noted(
        Workers(process="p", iterator=0, start_ns=0, pids=[50]),
        steps=steps(0, 100),
        nexts=[taken(0, 10, 30, samples=3)],
        fetches=[made(0, 1, 9, samples=16)],
    )
    assert loads_of_steps(*rank)["samples"] == [16]


def test_without_a_dataloader_nothing_is_claimed():
    assert loads_of_steps(*noted(steps=steps(0, 100)))["loader_wait_ns"] == [None]
    assert len(stages_of(*noted(steps=steps(0, 100)))) == 0


def test_passes_are_numbered_and_workers_found_by_process_id_and_time():
    rank = noted(
        Workers(process="p", iterator=2, start_ns=10, pids=[50]),
        Workers(process="p", iterator=5, start_ns=210, pids=[50]),  # the process id came back
        nexts=[
            taken(0, 20, 30, iterator=2),
            taken(0, 120, 130, iterator=2, epoch=1),
            taken(0, 220, 230, iterator=5),
        ],
        fetches=[made(0, 15, 25), made(0, 115, 125, epoch=1), made(0, 215, 225), made(0, 216, 226, pid=99)],
    )
    table = stages_of(*rank)
    found = list(zip(table.texts("kind"), table.ints("loader"), table.ints("pid"), table.ints("start_ns"), strict=True))
    assert found == [
        ("fetch", 0, 50, 15), ("next", 0, 7, 20),
        ("fetch", 1, 50, 115), ("next", 1, 7, 120),
        ("fetch", 2, 50, 215), ("next", 2, 7, 220),
    ]  # fmt: skip


def test_stages_of_the_job_say_where_they_ran():
    rank = noted(
        Workers(process="p", iterator=0, start_ns=0, pids=[50, 51]),
        stages=[MarkedStage(name="load", start_ns=5, end_ns=9), MarkedStage(name="next", start_ns=8, end_ns=9)],
        worker_stages={
            51: [MarkedStage(name="decode", start_ns=3, end_ns=4)],
            99: [MarkedStage(name="decode", start_ns=7, end_ns=8)],
        },
    )
    table = stages_of(*rank)
    found = zip(table.texts("name"), table.ints("pid"), table.ints("worker"), table.ints("end_ns"), strict=True)
    assert list(found) == [("decode", 51, 1, 4), ("load", 7, -1, 9), ("decode", 99, 2, 8), ("next", 7, -1, 9)]
    assert set(table.texts("kind")) == {"stage"}


def test_parts_of_a_batch_are_rows_at_its_time():
    fetch = Fetch(
        pid=50,
        worker=0,
        epoch=0,
        batch=0,
        start_ns=1,
        end_ns=9,
        samples=4,
        cpu_ns=5,
        ready_ns=2,
        parts={"decode": (6, 4)},
    )
    rank = noted(Workers(process="p", iterator=0, start_ns=0, pids=[50]), nexts=[taken(0, 8, 10)], fetches=[fetch])
    table = stages_of(*rank)
    part = table.where(table.is_kind("part"))
    assert (part.texts("name"), part.ints("took_ns").tolist(), part.ints("cpu_ns").tolist()) == (["decode"], [6], [4])
    assert (part.ints("batch").tolist(), part.ints("end_ns").tolist(), part.ints("ready_ns").tolist()) == (
        [0],
        [9],
        [-1],
    )


def test_pinning_is_no_stage_of_the_job_and_a_pass_says_how_long_it_is():
    rank = noted(
        nexts=[taken(0, 8, 10, in_order=True, batches=12)],
        stages=[MarkedStage(name=PINNING, start_ns=5, end_ns=9), MarkedStage(name="load", start_ns=6, end_ns=9)],
    )
    table = stages_of(*rank)
    assert table.texts("kind") == ["pin", "stage", "next"]
    assert (table.ints("in_order").tolist(), table.ints("batches").tolist()) == ([-1, -1, 1], [-1, -1, 12])
