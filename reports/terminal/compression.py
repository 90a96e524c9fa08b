"""What is recommended of gradient compression, as text for a terminal."""

from collections import Counter

from rich.text import Text

from esprof.analyzers.advisors.compression.instance import OPTIONS, InstanceAnswer
from esprof.reports import units
from esprof.reports.terminal.text import PLAIN, Screen, drawn, fact, grid, headline


def draw_instance(found: InstanceAnswer, screen: Screen = PLAIN) -> str:
    """How soon all tensors can be synchronised, and how many get which option."""
    rows = grid("option", "what is sent", ">tensors", padding=2)
    for option, count in sorted(Counter(found.choices).items()):
        rows.add_row(str(option), OPTIONS[option], f"{count:,}")
    title = headline(f"The last tensor is synchronised after {units.duration(found.value_us)}", screen)
    proof = "no choice is better" if found.gap_kind == "exact" else f"at most {units.pct(found.gap_pct)} above the best"
    return drawn(screen, title, Text(), rows, Text(), fact("Proof", proof, screen))
