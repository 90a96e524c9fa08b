"""Clocks of ranks, compared with rank 0's, and the steps at which windows begin on all of them."""
