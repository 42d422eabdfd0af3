"""The picture in docs/mig.md; `./invoke generate` writes it."""

from __future__ import annotations

from kiln.base.paths import ROOT
from kiln.mig.draw import draw_svg
from kiln.mig.plan import plan_layout

PICTURE = ROOT / "docs" / "images" / "mig-plan.svg"
SHOWN = ("p4d.24xlarge", "1g.5gb=40,3g.20gb=4")


def picture_text() -> str:
    """The content of the SVG file."""
    return draw_svg(plan_layout(*SHOWN))
