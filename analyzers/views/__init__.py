"""Views shared by several rules: breakdown, collectives, memory, probes, device peaks, and enclosing calls."""
