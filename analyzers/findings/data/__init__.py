"""ESP1xx: input data."""
