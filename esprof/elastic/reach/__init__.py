"""What a training script's functions and objects reach besides the model: found by walking, switched between ESTs, saved."""
