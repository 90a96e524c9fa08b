"""ESP8xx: hangs and dead ranks (`hangs.py`), and slow steps with stacks (`slow_steps.py`)."""
