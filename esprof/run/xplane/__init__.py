"""Profiles of JAX and TensorFlow (`.xplane.pb`)."""
