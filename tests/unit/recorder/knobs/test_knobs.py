"""The knobs: what they are called, what they do to what a job makes, and what they leave alone."""

from collections import Counter

import pytest
import torch
from torch import distributed as dist
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset

from esprof.recorder.injected.knobs import Knobs
from esprof.recorder.injected.log.notes import Log
from esprof.recorder.knobs import KNOBS, KnobState
from esprof.recorder.knobs.models import call
from esprof.recorder.shared import tcp
from esprof.replay.whatif.grammar import parse

POINTS = TensorDataset(torch.arange(12.0))


class Endless(IterableDataset):
    def __iter__(self):
        return iter([torch.zeros(1)] * 4)


@pytest.fixture(autouse=True)
def loaders_as_they_were(monkeypatch):
    """What knobs wrap is put back behind each test."""
    for name in ("__init__", "__iter__", "_get_iterator"):
        monkeypatch.setattr(DataLoader, name, getattr(DataLoader, name))


@pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)
def test_a_knob_is_named_as_the_term_that_it_carries_out(knob):
    if not knob.is_term:
        return
    (term,) = parse(f"{knob.name}={knob.example}")
    assert knob.name == term.kind.name + (f"[{term.argument}]" if term.argument else "")


@pytest.mark.parametrize("knob", KNOBS.values(), ids=lambda knob: knob.name)
def test_a_value_has_one_spelling(knob):
    assert knob.spelled(knob.spelled(knob.example)) == knob.spelled(knob.example)


@pytest.mark.parametrize(
    ("name", "text", "spelled"),
    [
        ("bucket_mb", "4.0", "4"),
        ("bucket_mb", "0.5", "0.5"),
        ("loader.workers", "2.0", "2"),
        ("data[ready]", "0.0", "0"),
        ("cache[samples]", "0.50", "0.5"),
        ("loader.in_order", "0.0", "0"),
    ],
)
def test_spellings(name, text, spelled):
    assert KNOBS[name].spelled(text) == spelled


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("bucket_mb", "0"),
        ("bucket_mb", "many"),
        ("bucket_mb", "nan"),
        ("loader.workers", "1.5"),
        ("loader.prefetch", "0"),
        ("threads", "0"),
        ("threads", "inf"),
        ("data[ready]", "1"),
        ("cache[samples]", "0"),
        ("cache[samples]", "1.5"),
        ("loader.in_order", "1"),
        ("compress", "plan.json"),
        ("compress", "none"),
        ("network.cc", "BBR"),
        ("network.cc", ""),
        ("compile", "reduce-overhead"),
    ],
)
def test_what_is_no_value_is_refused(name, text):
    with pytest.raises(ValueError, match=r"its value|is not a|write a codec"):
        KNOBS[name].spelled(text)


def test_workers_of_loaders():
    read = KNOBS["loader.workers"].install("1")
    loader = DataLoader(POINTS, 4)
    assert read() == KnobState(None, "no torch.utils.data.DataLoader has been asked for a batch")
    assert [len(batch[0]) for batch in loader] == [4, 4, 4]
    assert (loader.num_workers, read()) == (1, KnobState("1"))


def test_no_workers_need_nothing_that_is_for_workers():
    read = KNOBS["loader.workers"].install("0")
    loader = DataLoader(POINTS, 4, num_workers=2, prefetch_factor=4, persistent_workers=True, timeout=5)
    assert len(list(loader)) == 3
    assert read() == KnobState("0")


def test_an_iterable_dataset_keeps_its_workers():
    """With others each would make all of its samples, or each none."""
    read = KNOBS["loader.workers"].install("2")
    assert len(list(DataLoader(Endless(), 2))) == 2
    assert read().value == "0"
    assert "iterable" in read().reason


def test_a_loader_without_workers_has_no_prefetch():
    read = KNOBS["loader.prefetch"].install("4")
    list(DataLoader(POINTS, 4))
    assert read() == KnobState(None, "a DataLoader without workers does not prefetch")


def test_prefetch_of_loaders_with_workers():
    read = KNOBS["loader.prefetch"].install("4")
    list(DataLoader(POINTS, 4, num_workers=1))
    assert read() == KnobState("4")


class Counted(Dataset):
    """Twelve samples, which counts how often each is made."""

    def __init__(self):
        self.made = Counter()

    def __len__(self):
        return 12

    def __getitem__(self, index):
        self.made[index] += 1
        return torch.tensor([float(index)])


def test_a_cache_of_samples_holds_its_share(monkeypatch, tmp_path):
    monkeypatch.setenv("ESPROF_RUN", str(tmp_path))
    read, dataset = KNOBS["cache[samples]"].install("0.5"), Counted()
    loader = DataLoader(dataset, 4)
    for _ in range(3):
        assert torch.cat(list(loader)).flatten().tolist() == list(range(12))
    assert sorted(dataset.made.values()) == [1] * 6 + [3] * 6
    assert read() == KnobState("0.5")


def test_datasets_of_one_length_have_caches_of_their_own(monkeypatch, tmp_path):
    monkeypatch.setenv("ESPROF_RUN", str(tmp_path))
    KNOBS["cache[samples]"].install("1")
    one, other = DataLoader(POINTS, 4), DataLoader(TensorDataset(-torch.arange(12.0)), 4)
    for _ in range(2):
        assert [torch.cat([points for (points,) in loader])[5] for loader in (one, other)] == [5, -5]


def test_an_iterable_dataset_has_no_cache_of_samples():
    read = KNOBS["cache[samples]"].install("0.5")
    assert len(list(DataLoader(Endless(), 2))) == 2
    assert read() == KnobState("0", "only a map-style dataset can be cached")


def test_loaders_deliver_batches_as_they_come():
    read = KNOBS["loader.in_order"].install("0")
    loader = DataLoader(POINTS, 4, num_workers=2)
    assert sorted(torch.cat([points for (points,) in loader]).tolist()) == list(range(12))
    assert (loader.in_order, read()) == (False, KnobState("0"))


@pytest.mark.parametrize(
    "name", ["loader.workers", "loader.prefetch", "loader.in_order", "cache[samples]", "data[ready]"]
)
def test_what_is_only_read_changes_nothing(name):
    read = KNOBS[name].install(None)
    loader = DataLoader(POINTS, 4, num_workers=1, prefetch_factor=3)
    assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]]
    values = {"loader.workers": "1", "loader.prefetch": "3", "loader.in_order": "1", "cache[samples]": "0"}
    assert read() == KnobState(values.get(name, "made"))


@pytest.mark.parametrize("workers", [{}, {"num_workers": 1}, {"num_workers": 1, "persistent_workers": True}])
def test_the_first_batch_again_and_again(workers):
    read = KNOBS["data[ready]"].install("0")
    loader = DataLoader(POINTS, 4, **workers)
    for _ in range(2):
        assert [batch[0].tolist() for batch in loader] == [[0, 1, 2, 3]] * 3
    assert read() == KnobState("0")


def test_a_loader_of_unknown_length_makes_its_batches():
    read = KNOBS["data[ready]"].install("0")
    assert len(list(DataLoader(Endless(), 2))) == 2
    assert read() == KnobState("made", "a DataLoader does not know how many batches it has")


def test_a_constructor_that_does_not_take_our_arguments_gets_the_jobs_own():
    made = []

    def constructor(one, size):
        if size > 1:
            raise ValueError("too large")
        made.append(size)

    call(constructor, None, lambda one, size: ((9,), {}), (1,), {})
    assert made == [1]
    with pytest.raises(ValueError, match="too large"):  # A fault of the job's own is the job's.
        call(constructor, None, lambda one, size: ((9,), {}), (2,), {})


def test_threads():
    before = torch.get_num_threads()
    try:
        assert KNOBS["threads"].install(None)() == KnobState(str(before))
        assert KNOBS["threads"].install(str(before + 1))() == KnobState(str(before + 1))
    finally:
        torch.set_num_threads(before)


def noted(monkeypatch, wanted):
    """What is noted of knobs that are set and read in this process."""
    rows = []
    log = Log()
    monkeypatch.setattr(log, "note", lambda kind, **row: rows.append((kind, row)))
    knobs = Knobs(wanted, log)
    knobs.install()
    knobs.note()
    return rows


def test_how_knobs_stand_is_noted(monkeypatch):
    value = str(torch.get_num_threads())
    assert noted(monkeypatch, (("threads", None),)) == [("knob", {"name": "threads", "value": value, "reason": ""})]


def test_a_knob_that_fails_leaves_the_job_as_it_was(monkeypatch, capsys):
    rows = noted(monkeypatch, (("threads", "no number"), ("loader.workers", None)))
    assert [row["value"] for kind, row in rows if kind == "knob"] == [None, None]
    assert [row["name"] for kind, row in rows if kind == "knob"] == ["threads", "loader.workers"]
    assert "the job continues" in capsys.readouterr().err


@pytest.fixture
def process_group(monkeypatch, tmp_path):
    """Makes a process group of this process alone."""
    helper = "_new_process_group_helper"
    monkeypatch.setattr(dist.distributed_c10d, helper, getattr(dist.distributed_c10d, helper))
    yield lambda: dist.init_process_group("gloo", init_method=f"file://{tmp_path / 'store'}", rank=0, world_size=1)
    if dist.is_initialized():
        dist.destroy_process_group()


@pytest.mark.parametrize(
    ("control", "reason"),
    [("reno", ""), ("nosuch", "the kernel refuses nosuch: No such file or directory"), (None, "")],
)
def test_the_congestion_control_of_the_sockets_of_process_groups(process_group, control, reason):
    read = KNOBS["network.cc"].install(control)
    assert read() == KnobState(None, "the process groups have opened no TCP connections")
    process_group()
    assert read() == KnobState("reno" if control == "reno" else tcp.default_control(), reason)
