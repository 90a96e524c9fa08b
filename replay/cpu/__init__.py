"""What a rank's CPU time and stack samples say of its main thread."""
