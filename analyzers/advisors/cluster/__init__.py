"""Advice for several jobs that share devices."""
