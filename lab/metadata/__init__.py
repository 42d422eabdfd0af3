"""IMDS, the instance metadata service, and what it hands out."""
