"""CPU time and stack samples of a rank's main thread."""
