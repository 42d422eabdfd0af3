"""The CloudWatch agent's stand-in: `agent/` runs in a guest, `install` names its files."""
