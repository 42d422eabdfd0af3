"""The distribution of docs/add-a-distribution.md under a name that no table of facts has."""

from __future__ import annotations

import re

from kiln.base.paths import ROOT

PAGE = (ROOT / "docs" / "add-a-distribution.md").read_text()
# What the page says to give as well for a distribution that the facts do not know.
_OTHER_KEYS = """    name: Debian 98
    vendor: debian
    package_manager: apt
    end_of_life: '2099-01-01'
    cuda_repo: debian13
    source: eol_debian
"""


def files() -> dict[str, str]:
    """File below `overlay/` → its text, in the page's order."""
    blocks = re.findall(r"^`overlay/([\w./-]+)`\n\n```yaml\n(.*?)^```$", PAGE, re.M | re.S)
    texts = {name: text.replace("debian13", "debian98") for name, text in blocks}
    return texts | {"facts/distros.yaml": texts["facts/distros.yaml"] + _OTHER_KEYS}
