"""The parts, a module each, in the order in which they run: the quick ones that tell most come first."""

LIMITS_S = {
    "windows": 75,
    "syncs": 45,
    "graphs": 45,
    "products": 150,
    "memory": 90,
    "ranks": 110,
    "traces": 75,
    "staging": 30,
    "codecs": 30,
    "sparsity": 120,
    "elastic": 260,
    "overhead": 240,
    "whatifs": 330,
}
"""Seconds that each part may take."""

TOTAL_S = 20 * 60
"""Seconds that all of them may take together: parts mostly need less than they may take."""
