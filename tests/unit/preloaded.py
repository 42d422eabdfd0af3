"""What the process that `commands` forks reads once, so that no call of `./invoke` does.

The matrix alone: its document is kept by its text. What else a call reads depends on the
environment.
"""

from __future__ import annotations

from kiln.base.located import load_yaml
from kiln.base.paths import ROOT

load_yaml(ROOT / "amis.yaml")
