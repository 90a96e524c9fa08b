"""Recorded pipeline jobs under another schedule, with other stages, or with another number of microbatches."""
