"""The steps of a trace: as it marks them, or else as the repeated work in it shows."""
