"""What is saved of an elastic job, and how it is read back."""
