"""What of a job's work grows with the samples of its batches, and other batches."""
