"""The bench of one rank alone: what it notes, what a short budget leaves out, and that nothing of the job's is touched."""

import json
import random
import time

import pytest
import torch

from esprof.recorder.probes import devices, storage
from esprof.recorder.probes.agreement import Agreement, filled
from esprof.recorder.probes.backward import RepeatedBackward
from esprof.recorder.probes.bench import Bench
from esprof.run.raw import names

CPU = torch.device("cpu")


@pytest.fixture
def path(tmp_path):
    return tmp_path / names.probes_of(0)


@pytest.fixture
def bench(path):
    made = Bench(str(path), 0, Agreement(1), 60, CPU)
    yield made
    made.close(is_complete=True)


def noted(path, kind):
    rows = map(json.loads, path.read_text().splitlines())
    return [row["is"] for row in rows if row["kind"] == kind]


def test_each_size_is_repeated_and_noted_at_once(bench, path):
    calls = []
    bench.sweep(bench.mine("copy", "memory", "bytes"), [16, 8], lambda size: lambda: calls.append(size))
    points = noted(path, "point")
    assert [point["size"] for point in points] == [8, 16]
    assert all(3 <= len(point["samples_ns"]) <= 30 for point in points)
    assert points[0]["ranks"] == [0]
    assert calls == sorted(calls)


def test_what_does_the_thing_twice_is_halved(bench, path):
    bench.sweep(bench.mine("copy", "memory", "bytes"), [8], lambda _: lambda: time.sleep(0.02), times=2)
    (point,) = noted(path, "point")
    assert all(took >= 10_000_000 for took in point["samples_ns"])


def test_a_budget_that_is_used_up_leaves_the_smallest_size_and_says_where_it_ended(path):
    bench = Bench(str(path), 0, Agreement(1), 0.0, CPU)
    bench.sweep(bench.mine("copy", "memory", "bytes"), [8, 16], lambda _: lambda: None)
    assert [point["size"] for point in noted(path, "point")] == [8]
    (left,) = noted(path, "left-out")
    assert left["what"] == "copy memory from 16 bytes on"
    assert left["by_budget"]


def test_a_rank_that_does_not_take_part_notes_nothing(bench, path):
    bench.sweep(bench.mine("copy", "memory", "bytes"), [8], lambda _: None)
    assert noted(path, "point") == []


def test_sizes_beyond_the_memory_are_left_out(bench, path):
    bench.max_bytes = 100
    bench.sweep(bench.mine("copy", "memory", "bytes"), [8, 1 << 40], lambda _: lambda: None)
    assert [point["size"] for point in noted(path, "point")] == [8]


def test_shares_of_a_stage_do_not_reach_beyond_it(bench):
    bench.begin_stage(0.5)
    stage = bench._ends_s
    bench.use_share(0.5)
    assert bench._ends_s < stage <= 31
    bench.use_share(1.0)
    assert bench._ends_s == pytest.approx(stage, abs=0.5)


def test_a_pass_has_gradients_and_leaves_the_generators_alone(bench):
    before = torch.random.get_rng_state()
    passes = RepeatedBackward(bench)
    passes.once()
    assert passes.flop > 0
    assert torch.equal(torch.random.get_rng_state(), before)


def test_threads_are_as_they_were_when_they_have_been_measured(bench, path):
    before = torch.get_num_threads()
    devices.threads(bench)
    assert torch.get_num_threads() == before
    assert noted(path, "point")[0]["size"] == 1


def test_equal_numbers_are_made_even_of_none():
    assert filled(0, CPU, 2.0).tolist() == [2.0]


def test_files_are_read_by_size_and_threads_and_stay_as_they_are(bench, path, tmp_path):
    data = tmp_path / "data.bin"
    data.write_bytes(random.Random(0).randbytes(1 << 20))
    before = data.read_bytes()
    (tmp_path / names.opened(1)).write_text(f"{data}\n{tmp_path / 'gone'}\n/proc/self/mem\n")
    storage.loads(bench, str(tmp_path))
    warm = [point for point in noted(path, "point") if point["name"] == "warm"]
    assert {point["concurrency"] for point in warm} == {1, 4}
    assert max(point["size"] for point in warm) == 1 << 20
    assert data.read_bytes() == before


def test_without_files_nothing_is_read_and_it_says_so(bench, path, tmp_path):
    storage.loads(bench, str(tmp_path))
    assert noted(path, "left-out")[0]["what"] == "storage of the data"


def test_what_is_written_is_gone_afterwards(bench, path, tmp_path):
    storage.saves(bench, str(tmp_path))
    assert {point["kind"] for point in noted(path, "point")} == {"save"}
    assert list(tmp_path.iterdir()) == [path]
