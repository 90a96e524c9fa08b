"""The split of a model for a terminal: plans of many stages stay short."""

from esprof.analyzers.advisors.job.growth import Model
from esprof.analyzers.advisors.parallel.advise import advise_parallel
from esprof.analyzers.advisors.parallel.model import ParallelModel
from esprof.analyzers.advisors.parallel.profile import Devices
from esprof.analyzers.advisors.parallel.transformer import Transformer
from esprof.reports.terminal.advice.parallel import draw_parallel


def test_a_plan_of_many_stages_is_summed_up() -> None:
    gpt = Transformer(
        layers=30, hidden=4096, heads=32, vocabulary=50_000, sequence=1024, tflops={"A100": 150.0}, tokens=10**9
    )
    devices = Devices(
        devices={"A100": Model(count=32, memory_gb=6)}, network_gb_per_s=25.0, server_gb_per_s=250.0, per_server=2
    )
    advice = advise_parallel(ParallelModel(transformer=gpt), devices, 32)
    best, shown = advice.plans[0], draw_parallel(advice)
    assert len(best.stages) > 12
    assert f"groups of 2 A100 in {len(best.stages)} stages" in " ".join(shown.split())
    assert f"… {len(best.stages) - 12} more stages" in shown
    assert f"pp {len(best.stages) // best.chunks}, dp " in shown
    assert "optimizer sharded" in shown or "recompute" in shown
    assert "6.25 × 10⁹ parameters" in shown
