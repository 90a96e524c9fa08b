"""The search for a pipeline that mixes types of devices finds what trying all plans finds."""

import pytest

from esprof.analyzers.advisors.parallel.mixed.pricing import MixedPricing
from esprof.analyzers.advisors.parallel.mixed.profile import MixedProfile, ShardSizes
from esprof.analyzers.advisors.parallel.mixed.search import MixedSearch, cuts
from esprof.analyzers.advisors.parallel.profile import Devices
from esprof.core.errors import UsageError
from tests.cases.mixed import every_mixed_plan, random_mixed


@pytest.mark.parametrize("seed", range(60))
def test_the_best_plan_is_that_of_trying_all(seed: int) -> None:
    pricing, batch = random_mixed(seed)
    least = min((pricing.bound_us(*one) for one in every_mixed_plan(pricing, batch)), default=None)
    search = MixedSearch(pricing, batch)
    found = search.run()
    assert not search.left_out
    assert (search.found[found[0]] if found else None) == (None if least is None else pytest.approx(least, rel=1e-9))


@pytest.mark.parametrize("seed", range(20))
def test_no_plan_is_below_the_bound(seed: int) -> None:
    pricing, batch = random_mixed(seed)
    bound = min(cut.bound_us for cut in cuts(pricing, batch))
    for plan, microbatches in list(every_mixed_plan(pricing, batch))[:50]:
        assert pricing.step_us(plan, microbatches) >= bound * (1 - 1e-6)


def test_too_many_cuts_are_refused() -> None:
    """Each of ten types may be cut in four ways."""
    layer = (ShardSizes(parameter_bytes=1, output_bytes=1, kept_bytes=1),)
    kinds, degrees = [str(number) for number in range(10)], (1, 2, 4, 8)
    profile = MixedProfile(
        model="tiny",
        times={kind: {1: dict.fromkeys(degrees, ((1.0, 1.0, 1.0),))} for kind in kinds},
        sizes=dict.fromkeys(degrees, layer),
    )
    devices = Devices(devices=dict.fromkeys(kinds, 8), network_gb_per_s=1.0, per_server=8)
    with pytest.raises(UsageError, match="more than 20,000 ways"):
        MixedSearch(MixedPricing(profile, devices), 8).run()


def test_cuts_that_would_take_too_long_are_named() -> None:
    pricing, batch = random_mixed(0)
    search = MixedSearch(pricing, batch, max_tried=0)
    assert search.run() == []
    assert search.left_out
