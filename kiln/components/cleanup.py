"""What belongs to the build instance goes."""

from __future__ import annotations

from kiln.components.component import Component

COMPONENT = Component(
    name="cleanup",
    what="removal of keys, identities, histories, caches and cloud-init state",
    optional=False,
)
