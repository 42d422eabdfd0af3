"""The picture in docs/mig.md: `python -m kiln.mig.picture` writes it.

A unit test refuses a stale one.
"""

from __future__ import annotations

from kiln.base.paths import ROOT
from kiln.mig.draw import draw_svg
from kiln.mig.plan import plan

PICTURE = ROOT / "docs" / "images" / "mig-plan.svg"
SHOWN = ("p4d.24xlarge", "1g.5gb=40,3g.20gb=4")


def text() -> str:
    """The SVG as it is written."""
    return draw_svg(plan(*SHOWN))


if __name__ == "__main__":
    PICTURE.write_text(text(), encoding="utf-8")
