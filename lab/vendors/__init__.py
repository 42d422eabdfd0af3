"""The vendors that guests fetch from: the mirror, its packages, stand-ins for their programs."""
