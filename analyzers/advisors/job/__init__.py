"""Advice for one job: ESTs, batches, and more devices."""
