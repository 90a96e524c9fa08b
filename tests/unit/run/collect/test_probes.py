"""What ranks noted while they measured, made into probes.json: whole notes, half ones, and those of a rank that is gone."""

import json

import msgspec
import pytest

from esprof.core.errors import InputError
from esprof.run.collect.probes import probes_of
from esprof.run.directory import read_probes, write_probes
from esprof.run.probes import Probes, joined, put_together
from esprof.run.raw.settings import Settings
from tests.cases.probed import link, probes

SETTINGS = Settings(probe_s=60)
SWEEP = {
    "kind": "collective", "name": "all_reduce", "unit": "bytes", "ranks": [0, 1], "device": "cpu", "backend": "gloo",
    "beside": "", "concurrency": 1,
}  # fmt: skip


def point(size, samples, cpu_ns=10, **changed):
    return ("point", SWEEP | changed | {"size": size, "samples_ns": samples, "cpu_ns": cpu_ns})


def noted(raw, rank, *rows, rest=b""):
    lines = [json.dumps({"kind": kind, "is": row}).encode() for kind, row in rows]
    (raw / f"probes-{rank:05d}.jsonl").write_bytes(b"\n".join(lines) + b"\n" + rest)


END = ("end", {"took_s": 5.0, "whole": True})


def test_nothing_was_measured(tmp_path):
    assert probes_of(tmp_path, SETTINGS, ["python"], 2, 2) is None


def test_a_collective_took_what_it_took_the_rank_that_came_last(tmp_path):
    noted(tmp_path, 0, point(8, [100, 900], 10), ("stage", {"name": "all-reduces"}), END)
    noted(tmp_path, 1, point(8, [300, 200], 30), ("stage", {"name": "all-reduces"}), END)
    found = probes_of(tmp_path, SETTINGS, ["python"], 2, 2)
    (sweep,) = found.sweeps
    assert [(one.size, one.samples_ns, one.cpu_ns) for one in sweep.points] == [(8, (100, 200), 30)]
    assert found.whole
    assert found.stages == ("all-reduces",)
    assert found.command == ("python",)


def test_what_a_rank_measured_alone_stays_its_own(tmp_path):
    for rank in (0, 1):
        noted(tmp_path, rank, point(8, [100 + rank], kind="copy", name="memory", ranks=[rank], backend=None), END)
    assert [one.ranks for one in probes_of(tmp_path, SETTINGS, [], 2, 2).sweeps] == [(0,), (1,)]


def test_repeats_of_one_size_are_put_together_and_sizes_ascend(tmp_path):
    noted(tmp_path, 0, point(16, [5], None), point(8, [1], 10), point(8, [2, 3], 40), END)
    (sweep,) = probes_of(tmp_path, SETTINGS, [], 1, 1).sweeps
    assert [(one.size, one.samples_ns, one.cpu_ns) for one in sweep.points] == [(8, (1, 2, 3), 30), (16, (5,), None)]


def test_a_rank_that_was_killed_leaves_what_it_had_and_the_probe_is_not_whole(tmp_path):
    noted(tmp_path, 0, point(8, [100]), ("stage", {"name": "a"}), ("stage", {"name": "b"}), END)
    noted(tmp_path, 1, point(8, [90]), ("stage", {"name": "a"}), rest=b'{"kind":"point","is":{"kind":"coll')
    found = probes_of(tmp_path, SETTINGS, [], 2, 2)
    assert not found.whole
    assert found.stages == ("a",)
    assert found.sweeps[0].points[0].samples_ns == (90,)


def test_a_rank_that_noted_nothing_makes_it_not_whole(tmp_path):
    noted(tmp_path, 0, END)
    assert not probes_of(tmp_path, SETTINGS, [], 2, 2).whole


@pytest.mark.parametrize("line", [b"{}", b"[]", b"\xff", b'{"kind":"point","is":{"size":0}}', b"[" * 5000])
def test_lines_that_make_no_sense_are_left_out(tmp_path, line):
    noted(tmp_path, 0, point(8, [100]), END, rest=line + b"\n")
    assert len(probes_of(tmp_path, SETTINGS, [], 1, 1).sweeps) == 1


def test_sweeps_of_unlike_things_are_not_put_together():
    assert len(put_together([link(0, 1.0), link(0, 1.0, name="all_gather")])) == 2


def test_what_the_launchers_of_two_hosts_measured_becomes_one():
    parts = [probes(link(alpha, 1.0)) for alpha in (100, 50)]
    whole = joined(parts)
    (sweep,) = whole.sweeps
    assert sweep.points == parts[1].sweeps[0].points
    assert not joined([parts[0], msgspec.structs.replace(parts[1], whole=False)]).whole


def test_a_file_is_written_whole_and_read_again(tmp_path):
    written = probes(link(1e6, 10.0))
    write_probes(tmp_path, written)
    assert read_probes(tmp_path) == written
    assert (tmp_path / "probes.json").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize(
    "text",
    ["", "{", "[]", '{"schema": "esprof.probes/2"}', '{"schema": "esprof.probes/1"}', '{"schema": 5}', "[" * 9000],
)
def test_a_broken_file_is_refused_with_its_name(tmp_path, text):
    (tmp_path / "probes.json").write_text(text)
    with pytest.raises(InputError) as refused:
        read_probes(tmp_path)
    assert refused.value.path == tmp_path / "probes.json"


@pytest.mark.parametrize("change", [{"size": 0}, {"size": -1}, {"samples_ns": []}, {"samples_ns": [-1]}])
def test_points_that_cannot_be_are_refused(tmp_path, change):
    good = json.loads(msgspec.json.encode(probes(link(1e6, 10.0))))
    good["sweeps"][0]["points"][0] |= change
    (tmp_path / "probes.json").write_text(json.dumps(good))
    with pytest.raises(InputError):
        read_probes(tmp_path)


def test_without_a_file_there_are_no_probes(tmp_path):
    assert read_probes(tmp_path) is None
    assert isinstance(probes(), Probes)
