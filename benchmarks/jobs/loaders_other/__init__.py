"""Training jobs on records of text and on pairs of image and mask."""
