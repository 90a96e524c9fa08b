"""Settings of the test bed in which what-ifs come true."""

import pytest

from benchmarks.settings import Setting, changed, noise_pct
from benchmarks.testbed.network import bits_per_s

THREE = Setting(("job.py",), cpu=(0.6, 0.5, 0.4), rate=("200mbit", "200mbit", "2.5gbit"))


@pytest.mark.parametrize(
    ("spec", "cpu", "rate"),
    [
        ("network=2x", (0.6, 0.5, 0.4), ("400mbit", "400mbit", "5000mbit")),
        ("cpu=0.5x", (0.3, 0.25, 0.2), ("200mbit", "200mbit", "2500mbit")),
        ("rank1.cpu=1.5x", (0.6, 0.75, 0.4), ("200mbit", "200mbit", "2500mbit")),
        ("network=0.25x,rank2.cpu=0.5x", (0.6, 0.5, 0.2), ("50mbit", "50mbit", "625mbit")),
    ],
)
def test_quotas_and_rates_change_as_the_what_if_says(spec, cpu, rate):
    after = changed(THREE, spec)
    assert after.argv == THREE.argv
    assert after.cpu == pytest.approx(cpu)
    assert rates(after) == rates(Setting((), rate=rate))


def rates(setting):
    return [bits_per_s(rate) for rate in setting.rate]


@pytest.mark.parametrize("spec", ["gpu=2x", "rank0.network=2x", "cpu=0", "network=2x,data=0", ""])
def test_what_quotas_and_rates_cannot_do_is_refused(spec):
    with pytest.raises(ValueError, match="cannot be carried out"):
        changed(THREE, spec)


def test_noise_is_how_far_repeats_lie_apart():
    assert noise_pct([110, 100, 105]) == pytest.approx(10)
    assert noise_pct([100]) == 0
