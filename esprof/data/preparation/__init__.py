"""How the jobs of a host share out the preparation of samples."""
