"""Starts, stops and watches the lab: its process, its users, what it needs of this machine."""
