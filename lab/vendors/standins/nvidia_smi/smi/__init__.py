"""The stand-in itself: stdlib only, Python 3.7+, runs inside a lab guest."""
