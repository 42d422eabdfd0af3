"""Modules that every other folder uses: settings, locks, folders, commands."""
