"""Convert the files in `raw` into a Run."""
