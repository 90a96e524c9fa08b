"""The page of `esprof serve`: running elastic jobs, their plans, and what a person decides."""
