"""The foundation: errors, paths, progress, signals, findings, the Recipe."""
