"""Running elastic jobs: what they do now, advice on it, and what a person or `esprof tune` makes of that."""
