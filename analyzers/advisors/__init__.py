"""Advisors: pure functions from measured profiles, devices and an objective to a priced decision with its proof."""
