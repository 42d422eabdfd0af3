"""AMIs: those that users made, those that AWS and vendors publish, and how new ones are made."""
