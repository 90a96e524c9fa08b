"""Trees of sampled stacks, from synthetic tables."""

import pytest

from esprof.analyzers.samples import flame as module
from esprof.analyzers.samples.flame import collapsed, flame
from esprof.analyzers.samples.job_samples import JobSamples
from esprof.analyzers.steps.job_steps import JobSteps
from esprof.run.run import RankMeta, Run, RunMeta
from esprof.run.schema import SAMPLES, STEPS, table

MS = 1_000_000
MAIN = "train.py(9): main"
FORWARD = "models/net.py({}): forward"
TORCH = "python3.11/site-packages/torch/nn/modules/{}"
CALLS = [TORCH.format("module.py(1500): Module._wrapped_call_impl"), TORCH.format("module.py(1700): Module._call_impl")]


def sampled(samples, phases=("plain", "plain", "stack", "timed")):
    """A job with these `samples` on each rank: (step, ms, ms on a CPU, frames). Step 0 is the first of `phases`."""
    steps = {"step": list(range(len(phases))), "phase": list(phases)}
    tables = {}
    for rank, rows in samples.items():
        step, dur, cpu, stacks = zip(*rows, strict=True) if rows else ((), (), (), ())
        columns = {
            "step": step,
            "dur_ns": [ms * MS for ms in dur],
            "cpu_ns": [None if ms is None else ms * MS for ms in cpu],
            "stack": ["\n".join(frames) for frames in stacks],
        }
        tables["samples", rank] = table({name: list(values) for name, values in columns.items()}, SAMPLES)
        tables["steps", rank] = table(steps, STEPS)
    ranks = tuple(RankMeta(rank=rank, events=1) for rank in samples)
    run = Run(RunMeta(world_size=len(samples), ranks=ranks), lambda name, rank: tables.get((name, rank)))
    return JobSamples(JobSteps(run))


def shown(tree):
    """The nodes as paths of functions, with their ms."""
    paths = {-1: ()}
    for index, node in enumerate(tree.nodes):
        assert node.parent < index
        paths[index] = (*paths[node.parent], node.function)
    return {"/".join(paths[index]): node.us / 1_000 for index, node in enumerate(tree.nodes)}


def test_samples_of_a_function_are_joined_across_lines():
    rows = [(2, 30, 30, [MAIN, FORWARD.format(3)]), (2, 10, 0, [MAIN, FORWARD.format(5)]), (2, 60, 6, [MAIN])]
    (tree,) = flame(sampled({0: rows})).trees
    assert shown(tree) == {"main": 100, "main/forward": 40}
    assert (tree.rank, tree.samples, tree.us, tree.cpu_us) == (None, 3, 100_000, 36_000)
    forward = tree.nodes[1]
    assert (forward.file, forward.origin, forward.cpu_us) == ("models/net.py", "job", 30_000)
    assert [(line.line, line.pct) for line in forward.lines] == [(3, 75.0), (5, 25.0)]


@pytest.mark.parametrize(
    ("steps", "phase"), [((1, 2, 3), "stack"), ((1, 3), "plain"), ((3,), "timed"), ((0, 3), "timed"), ((0,), None)]
)
def test_samples_are_of_the_best_phase_without_the_first_step(steps, phase):
    found = flame(sampled({0: [(step, 10, 10, [MAIN]) for step in steps]}))
    assert (found and found.phase) == phase
    assert found is None or found.trees[0].samples == 1


def test_a_run_without_samples_has_no_stacks():
    assert flame(sampled({0: [], 1: []})) is None
    assert collapsed(sampled({0: []})) == ""


def test_module_calls_and_recursion_add_no_levels():
    sequential = TORCH.format("container.py(244): Sequential.forward")
    stack = [MAIN, *CALLS, sequential, *CALLS, sequential, *CALLS, TORCH.format("linear.py(134): Linear.forward")]
    (tree,) = flame(sampled({0: [(2, 10, 10, stack), (2, 5, 5, [MAIN, *CALLS])]})).trees
    assert shown(tree) == {
        "main": 15,
        "main/Sequential.forward": 10,
        "main/Sequential.forward/Linear.forward": 10,
        "main/Module._call_impl": 5,
    }
    assert [node.origin for node in tree.nodes] == ["job", "torch", "torch", "torch"]


def test_cpu_time_is_unknown_if_any_sample_lacks_it():
    (tree,) = flame(sampled({0: [(2, 10, 10, [MAIN]), (2, 10, None, [MAIN])]})).trees
    assert (tree.cpu_us, tree.nodes[0].cpu_us) == (None, None)


def test_small_functions_of_one_caller_are_joined():
    rows = [(2, 4, 4, [MAIN, f"a.py(1): small{number}"]) for number in range(5)]
    rows += [(2, 1, 1, [FORWARD.format(1), "a.py(1): tiny"]), (2, 979, 0, [FORWARD.format(1)])]
    (tree,) = flame(sampled({0: rows})).trees
    # Joined functions that are still below the bound are left out.
    assert shown(tree) == {"forward": 980, "main": 20, "main/5 more": 20}
    assert tree.nodes[2].file == ""


def test_a_tree_is_bounded_and_retains_callers(monkeypatch):
    monkeypatch.setattr(module, "MAX_NODES", 10)
    rows = [(2, 10 + width, 5, [MAIN, *(f"a.py(1): f{width}_{depth}" for depth in range(5))]) for width in range(20)]
    (tree,) = flame(sampled({0: rows})).trees
    own = [node for node in tree.nodes if node.file]
    assert 5 <= len(own) <= 10
    assert shown(tree)["main"] == sum(range(10, 30))
    for index, node in enumerate(tree.nodes):
        callees = sum(one.us for one in tree.nodes if one.parent == index)
        assert callees <= node.us


def test_the_tree_of_all_ranks_precedes_the_most_different_ranks():
    usual, other = [(2, 100, 100, [MAIN])], [(2, 50, 50, [MAIN]), (2, 50, 0, [MAIN, "slow.py(1): wait"])]
    found = flame(sampled({**dict.fromkeys(range(12), usual), 12: other}))
    assert [tree.rank for tree in found.trees] == [None, 0, 1, 2, 3, 12]
    assert found.ranks == tuple(range(13))
    assert found.trees[0].us == 1_300_000
    assert shown(found.trees[-1]) == {"main": 100, "main/wait": 50}


def test_collapsed_stacks():
    rows = [
        (2, 30, 30, [MAIN, FORWARD.format(3)]),
        (2, 10, 0, [MAIN, FORWARD.format(3)]),
        (2, 5, 5, [MAIN, "<built-in; sleep>"]),
    ]
    job = sampled({0: rows, 3: rows[2:]})
    assert collapsed(job).splitlines() == [
        "rank 0;main (train.py);<built-in, sleep> 5000",
        "rank 0;main (train.py);forward (models/net.py:3) 40000",
        "rank 3;main (train.py);<built-in, sleep> 5000",
    ]
    assert collapsed(job, rank=3).splitlines() == ["rank 3;main (train.py);<built-in, sleep> 5000"]
