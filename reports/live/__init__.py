"""Running elastic jobs: their state, plans proposed for them, and decisions by users or by `esprof tune`."""
