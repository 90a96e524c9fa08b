"""Products of matrices with weights: sparse ones (`sparse`)."""
