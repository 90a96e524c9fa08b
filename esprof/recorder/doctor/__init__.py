"""Is this installation sound? Trials of what esprof and PyTorch need: of the host (`host.py`, `network.py`), and of torch in
processes of their own (`torch_trial.py`)."""
