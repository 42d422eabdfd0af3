"""The removal of traces of the build instance."""

from __future__ import annotations

from kiln.components.component import Component

COMPONENT = Component(
    name="cleanup",
    what="removal of keys, identities, histories, caches and cloud-init state",
    optional=False,
)
