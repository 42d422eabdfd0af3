"""What is on the image, written down."""

from __future__ import annotations

from kiln.components.component import Component

COMPONENT = Component(
    name="version-info",
    what="/etc/kiln/version-info.json, the truth about what is on the image",
    optional=False,
)
