"""Read flight recordings and find the ranks that caused a hang."""
