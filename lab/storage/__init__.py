"""Disks: overlays of root filesystems, volumes, loop devices."""
