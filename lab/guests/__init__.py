"""The machines behind instances: systemd-nspawn guests."""
