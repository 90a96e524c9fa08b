"""What to change, priced: pure functions from measured profiles, devices and an objective to a decision with its proof."""
