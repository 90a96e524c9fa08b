"""Properties that take seconds with all of their examples."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings

_IS_THOROUGH = settings.get_current_profile_name() == "thorough"


def thorough(examples: int = 100) -> Callable[[Any], Any]:
    """Mark a property that takes seconds: `make test` tries a tenth of its examples, `make test-all` all of them."""
    tried = examples if _IS_THOROUGH else max(examples // 10, 3)
    return lambda test: pytest.mark.thorough(settings(max_examples=tried)(test))
