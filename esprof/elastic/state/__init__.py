"""What an EST and a trainer carry from step to step, and how it is saved and restored."""
