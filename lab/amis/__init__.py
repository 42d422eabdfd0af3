"""What is kept of AMIs: those that users made, those that AWS and vendors publish."""
