"""ESP1xx: input data. `input_data.py`: ranks that wait for their data loader."""
