"""What a running elastic job tells of itself: its Run, its steps as they end, and its history."""
