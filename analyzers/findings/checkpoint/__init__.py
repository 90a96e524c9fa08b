"""ESP6xx: checkpoints, and other slow steps that recur (`recurring_steps.py`)."""
