"""The guests' network: bridge, names, AWS's endpoints."""
