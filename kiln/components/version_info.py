"""The list of what is on the image."""

from __future__ import annotations

from kiln.components.component import Component

COMPONENT = Component(
    name="version-info",
    what="/etc/kiln/version-info.json, the list of what is on the image",
    optional=False,
)
