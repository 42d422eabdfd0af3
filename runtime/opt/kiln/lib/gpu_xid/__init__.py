"""NVIDIA Xid and SXid events from the kernel log, one JSON line each.

Ships on the AMI: standard library only, Python 3.7 to 3.13. The daemon runs as long as the machine,
so its modules do not import `argparse`, `logging`, `subprocess` or `typing`, which cost 0.4 to
10 MiB each. The commands for people may import anything.
"""

from __future__ import annotations

__version__ = "1.0.0"
