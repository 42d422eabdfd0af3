"""NVIDIA Xid and SXid events from the kernel log, one JSON line each.

Ships on the AMI: standard library only, Python 3.7 to 3.13. What the daemon imports avoids
`re`, `json`, `socket`, `logging`, `argparse` and `subprocess`: each costs 0.1 to 10 MiB in a
process that lives as long as the machine. The commands for people import what they like.
"""

__version__ = "1.0.0"
