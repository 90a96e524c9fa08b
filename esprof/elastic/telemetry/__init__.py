"""Telemetry of a running elastic job: its Run, its steps as they end, and its history."""
