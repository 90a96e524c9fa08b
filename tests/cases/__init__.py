"""Builders of test cases, and jobs that tests run."""
