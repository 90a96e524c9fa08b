"""Batches of another size: which work grows with the number of samples, and how long a step then takes."""
