"""Telemetry of an image to CloudWatch: settings, agent configuration, its problems, its cost."""
