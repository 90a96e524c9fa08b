"""CUDA graphs whose kernels were not recorded."""

from esprof.analyzers import diagnose
from esprof.replay.building.build import build
from esprof.replay.building.node_names import TEXTS, Text
from tests.cases.graph import Row, call, kernel, launched, node, nodes_of, op, reasons, run_of

US = 1_000
GRAPH = TEXTS[Text.GRAPH_WORK]


def graph_work(dfg):
    """(start, end) of the work of graphs, µs after the first event."""
    nodes = nodes_of(dfg, GRAPH)
    return [(int(dfg.recorded_ns[n]) // US, int(dfg.recorded_ns[n] + dfg.dur_ns[n]) // US) for n in nodes]


def decode(*kernels: Row) -> list[Row]:
    """A graph launched at 50; a kernel launched behind it runs from 5,000 on, and the thread waits for it."""
    return [
        op("aten::copy_", 0, 40),
        call("cudaGraphLaunch", 50, 30, 1),
        *kernels,
        *launched("argmax", 90, 5000, 100, 2),
        call("cudaStreamSynchronize", 100, 5010, 3),
        op("aten::item", 5110, 40),
    ]


def test_a_graph_occupies_its_stream_until_the_next_piece_begins():
    dfg = build(run_of({0: decode()}))
    assert graph_work(dfg) == [(55, 5000)]
    assert GRAPH in reasons(dfg, node(dfg, "argmax"))
    assert not dfg.residual_ns.any()


def test_its_time_is_compute_and_a_warning_says_that_it_is_inferred():
    diagnosis = diagnose(run_of({0: decode()}))
    assert diagnosis.breakdown[0].compute == 5045
    assert "graphs-not-recorded" in {warning.code for warning in diagnosis.warnings}
    assert diagnosis.explained_pct > 99
    assert "most of its kernels were not recorded" in diagnosis.findings[0].title


def test_a_wait_for_the_graph_ends_it():
    rows = [
        *launched("copy", 0, 10, 20, 1),
        call("cudaGraphLaunch", 50, 30, 2),
        call("cudaStreamSynchronize", 90, 3910, 3),
        op("aten::mm", 6000, 100),
        *launched("next", 6010, 6020, 50, 4),
    ]
    dfg = build(run_of({0: rows}))
    assert graph_work(dfg) == [(55, 4000)]
    assert GRAPH in reasons(dfg, node(dfg, "cudaStreamSynchronize"))


def test_a_graph_with_kernels_has_no_other_work():
    assert not graph_work(build(run_of({0: decode(kernel("layer", 100, 4900, 1))})))


def test_a_wait_behind_a_later_launch_may_be_for_earlier_work():
    rows = [
        *launched("copy", 0, 2000, 20, 1),  # The stream is busy with older work until 2,000.
        call("cudaGraphLaunch", 50, 30, 2),
        *launched("argmax", 90, 5000, 100, 3),
        call("cudaEventSynchronize", 100, 1915, 4),
        op("aten::item", 2020, 3200),
    ]
    assert graph_work(build(run_of({0: rows}))) == [(2020, 5000)]
