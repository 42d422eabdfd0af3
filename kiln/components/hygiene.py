"""The proof that the clean-up left nothing behind."""

from __future__ import annotations

from kiln.components.component import Component

COMPONENT = Component(
    name="hygiene",
    what="assertion that the clean-up left nothing behind, right before the snapshot",
    optional=False,
)
