"""Plans that a running job adopts: where they come from, whether they fit, and whether they were any good."""
