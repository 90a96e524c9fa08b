"""Which EST trains on which sample, and the loaders that make the batches."""
