"""Runs of one job, made by hand as its hosts would have recorded it, and joined."""

import msgspec
import pytest

from esprof import load
from esprof.core.errors import InputError, OutputError
from esprof.core.types import NS_PER_S
from esprof.run.files import table_path
from esprof.run.groups import Group
from esprof.run.merge import merge
from esprof.run.run import RankMeta, RunMeta, RunWarning
from esprof.run.schema import EVENTS, table
from tests.cases.run_directory import write_run
from tests.cases.step_runs import EPOCH_NS, step_table


def part(path, ranks, *, host="a", world_size=4, start_ns=EPOCH_NS, clock=0, **fields):
    """A Run of some ranks of a job of ten steps, ten seconds long."""
    metas = tuple(
        RankMeta(rank=rank, host=host, clock_offset_ns=clock, clock_residual_ns=None if clock is None else 9, pid=rank)
        for rank in ranks
    )
    names = {f"op of {rank}" for rank in ranks}
    tables = {("steps", rank): step_table([1000] * 10, start_ns=start_ns) for rank in ranks}
    tables |= {("events", rank): table({"name": sorted(names)}, EVENTS) for rank in ranks}
    write_run(path, RunMeta(world_size=world_size, ranks=metas, **fields), tables)
    return path


@pytest.fixture
def parts(tmp_path):
    missing = [RunWarning("rank-missing", f"nothing was recorded of rank {them}", them) for them in ((2, 3), (0, 1))]
    group = Group(name="0-3", ranks=(0, 1, 2, 3))
    return [
        part(tmp_path / "b", (2, 3), host="b", warnings=(missing[1],), groups=(group,), command=("b",), exit_code=3),
        part(
            tmp_path / "a",
            (0, 1),
            warnings=(missing[0], RunWarning("window-short", "rank 0: short", (0,))),
            groups=(group,),
            command=("a",),
            exit_code=0,
            versions={"torch": "2.13.0"},
        ),
    ]


def test_a_link_out_of_a_run_is_not_copied(tmp_path, parts):
    secret = tmp_path / "secret"
    secret.write_text("not of the run")
    (parts[0] / "stages").mkdir()
    table_path(parts[0], "stages", 2).symlink_to(secret)
    with pytest.raises(InputError, match="leads out of the run"):
        merge(parts, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


def test_the_ranks_of_all_hosts_are_in_the_whole(tmp_path, parts):
    whole = merge(parts, tmp_path / "whole")
    assert [(rank.rank, rank.host, rank.pid) for rank in whole.meta.ranks] == [
        (0, "a", 0),
        (1, "a", 1),
        (2, "b", 2),
        (3, "b", 3),
    ]
    assert whole.events(3).texts("name") == ["op of 2", "op of 3"]
    assert len(whole.steps(0)) == 10
    assert [group.name for group in whole.meta.groups] == ["0-3"]
    assert whole.meta.command == ("a",)
    assert whole.meta.exit_code == 3
    assert whole.meta.versions == {"torch": "2.13.0"}


def test_what_another_host_recorded_is_not_missing(tmp_path, parts):
    assert [warning.code for warning in merge(parts, tmp_path / "whole").warnings] == ["window-short"]
    third = part(tmp_path / "c", (5,), host="c", world_size=6)
    others = [part(tmp_path / name, ranks, host=name, world_size=6) for name, ranks in (("d", (0, 1)), ("e", (3,)))]
    [warning] = merge([third, *others], tmp_path / "rest").warnings
    assert (warning.code, warning.ranks) == ("rank-missing", (2, 4))


def test_that_a_rank_has_no_timed_window_is_told_of_the_whole_too(tmp_path):
    why = RunWarning("no-timed-window", "rank 4: has no timed window", (4,))
    more = part(tmp_path / "c", (4,), world_size=5, warnings=(why,))
    others = part(tmp_path / "d", (0, 1, 2, 3), world_size=5)
    assert merge([more, others], tmp_path / "whole").warnings == (why,)


def test_why_a_rank_is_missing_is_still_told(tmp_path):
    why = RunWarning("rank-missing", "rank 1: never seen", (1,))
    parts = [part(tmp_path / "a", (0,), world_size=3, warnings=(why,)), part(tmp_path / "b", (2,), world_size=3)]
    assert merge(parts, tmp_path / "whole").warnings == (why,)


def test_a_clock_that_was_not_compared_is_named(tmp_path):
    parts = [part(tmp_path / "a", (0, 1)), part(tmp_path / "b", (2, 3), host="b", clock=None)]
    [warning] = merge(parts, tmp_path / "whole").warnings
    assert (warning.code, warning.ranks) == ("clock-unknown", (2, 3))


def test_a_folder_of_parts_is_its_parts(tmp_path):
    for rank in range(3):
        part(tmp_path / "run" / f"part-{rank:05d}", (rank,), world_size=3)
    assert merge([tmp_path / "run"], tmp_path / "whole").ranks == [0, 1, 2]


def test_a_whole_can_be_joined_again(tmp_path):
    a, b, c = (part(tmp_path / name, (rank,), world_size=3) for rank, name in enumerate("abc"))
    merge([a, b], tmp_path / "ab")
    whole = merge([tmp_path / "ab", c], tmp_path / "abc")
    assert whole.ranks == [0, 1, 2]
    assert whole.warnings == ()


def test_a_whole_is_its_owner_s_alone(tmp_path, parts):
    merge(parts, tmp_path / "whole")
    modes = {path.stat().st_mode & 0o777 for path in (tmp_path / "whole").rglob("*")}
    assert modes == {0o600, 0o700}
    assert (tmp_path / "whole").stat().st_mode & 0o777 == 0o700


def test_a_broken_rank_is_named_and_left_out(tmp_path, parts):
    table_path(parts[0], "events", 3).write_bytes(b"?")
    whole = merge(parts, tmp_path / "whole")
    assert whole.ranks == [0, 1, 2]
    assert [warning.code for warning in load(tmp_path / "whole").warnings] == ["rank-unreadable", "window-short"]


def test_a_rank_in_two_runs_is_refused(tmp_path):
    parts = [part(tmp_path / "a", (0, 1)), part(tmp_path / "b", (1, 2))]
    with pytest.raises(InputError, match=r"rank 1 is in both .*a and .*b"):
        merge(parts, tmp_path / "whole")
    assert not (tmp_path / "whole").exists()


@pytest.mark.parametrize(
    ("other", "reason"),
    [
        ({"world_size": 8}, "world sizes are 4, 8"),
        ({"start_ns": EPOCH_NS + 100 * NS_PER_S}, "starts 90.0 s after the end of .*a"),
    ],
)
def test_runs_of_two_jobs_are_refused(tmp_path, other, reason):
    parts = [part(tmp_path / "a", (0, 1)), part(tmp_path / "b", (2, 3), **other)]
    with pytest.raises(InputError, match=f"not of one job: .*{reason}"):
        merge(parts, tmp_path / "whole")


def test_hosts_with_clocks_some_seconds_apart_are_accepted(tmp_path):
    parts = [part(tmp_path / "a", (0, 1)), part(tmp_path / "b", (2, 3), start_ns=EPOCH_NS + 15 * NS_PER_S)]
    assert merge(parts, tmp_path / "whole").ranks == [0, 1, 2, 3]


def test_what_is_no_run_is_refused(tmp_path):
    with pytest.raises(InputError, match="does not exist"):
        merge([tmp_path / "none"], tmp_path / "whole")
    with pytest.raises(InputError, match="is not a Run"):
        merge([tmp_path], tmp_path / "whole")


def test_nothing_is_overwritten_unasked(tmp_path, parts):
    merge(parts, tmp_path / "whole")
    with pytest.raises(OutputError, match="already exists"):
        merge(parts, tmp_path / "whole")
    assert merge(parts[1:], tmp_path / "whole", force=True).ranks == [0, 1]
    assert not list(tmp_path.glob(".*"))


def test_force_spares_what_is_no_run_and_what_is_read(tmp_path, parts):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis").touch()
    with pytest.raises(OutputError, match="is not a Run"):
        merge(parts, tmp_path / "mine", force=True)
    for out in (parts[0], tmp_path, parts[0] / "whole"):
        with pytest.raises(OutputError, match="overlaps with the input"):
            merge(parts, out, force=True)
    assert (tmp_path / "mine" / "thesis").exists()
    assert msgspec.json.decode((parts[0] / "run.json").read_bytes())["world_size"] == 4
