"""The overlays that docs/overlay.md and docs/add-a-distribution.md show."""

from __future__ import annotations

import re
from pathlib import Path

from kiln.base.paths import ROOT

PAGE = (ROOT / "docs" / "overlay.md").read_text()
DISTRIBUTION_PAGE = (ROOT / "docs" / "add-a-distribution.md").read_text()
# What the page says to give as well for a distribution that the facts do not know.
_OTHER_KEYS = """    name: Debian 98
    vendor: debian
    package_manager: apt
    end_of_life: '2099-01-01'
    cuda_repo: debian13
    source: eol_debian
"""


def write(files: dict[str, str], top: Path) -> Path:
    for name, text in files.items():
        path = top / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return top


def written(top: Path) -> Path:
    """The overlay of the worked example."""
    files = re.findall(r"^`overlay/([\w./-]+)`[^\n]*\n\n```\w*\n(.*?)^```$", PAGE, re.M | re.S)
    return write(dict(files), top)


def unknown_distribution() -> dict[str, str]:
    """File below `overlay/` → its text, in the page's order, under a name that no fact has."""
    blocks = re.findall(
        r"^`overlay/([\w./-]+)`\n\n```yaml\n(.*?)^```$", DISTRIBUTION_PAGE, re.M | re.S
    )
    texts = {name: text.replace("debian13", "debian98") for name, text in blocks}
    return texts | {"facts/distros.yaml": texts["facts/distros.yaml"] + _OTHER_KEYS}
