"""Disks: overlays of root filesystems."""
