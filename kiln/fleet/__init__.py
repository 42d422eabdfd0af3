"""Telemetry on machines that run already: who reports, and how it is brought to the others."""
