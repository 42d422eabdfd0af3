"""What everything else rests on: errors, paths, progress, signals, findings, the Recipe."""
