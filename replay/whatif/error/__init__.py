"""Error of a what-if: the known error of the run and the resulting intervals (`intervals`), the held-out test (`held_out`),
and the known error of each kind of change (`model_errors`)."""
