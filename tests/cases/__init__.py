"""What the tests build their cases from, and the jobs that they run."""
