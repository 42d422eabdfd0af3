"""The GPUs' application clocks; its files are in runtime/."""

from __future__ import annotations

from kiln.components.component import Component

COMPONENT = Component(
    name="boost-clocks",
    what="the GPUs' highest application clocks, set at every boot where the driver allows it",
)
