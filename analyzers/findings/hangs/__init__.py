"""ESP8xx: hangs and deaths (`hangs.py`), and slow steps caught in the act (`slow_steps.py`)."""
