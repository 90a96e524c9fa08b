"""What is noted of each step: its ends, CPU time, memory, batches, saves, garbage and samples."""
