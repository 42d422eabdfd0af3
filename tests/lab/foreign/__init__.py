"""Client walks: what strangers ask of the lab."""
