"""The monitor of Xid events; its files are in runtime/."""

from __future__ import annotations

from kiln.components.component import Component

COMPONENT = Component(
    name="aws-hw-monitor",
    what="the Xid event parser and its unit",
)
