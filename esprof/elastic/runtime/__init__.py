"""One step of an elastic job (`step`): the EST steps, the update, and the values that the ranks exchange."""
