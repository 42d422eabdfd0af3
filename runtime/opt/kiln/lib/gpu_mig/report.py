"""The output of gpu-mig: text for people, and the same facts as a dict for --json."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .plan import mode_words, shape_words
from .smi import Gpu, Instance
from .target import Shape, shape_order


def shapes(instances: Iterable[Instance]) -> tuple[Shape, ...]:
    """The shapes of instances, largest first."""
    return tuple(sorted((i.shape for i in instances), key=shape_order))


def state_dict(gpus: Sequence[Gpu]) -> list[dict[str, Any]]:
    """Every GPU: mode and instances."""
    return [
        {
            "gpu": g.index,
            "name": g.name,
            "device_id": g.device_id,
            "mig_capable": g.capable,
            "mode": {"current": g.current, "pending": g.pending},
            "instances": [
                {"id": i.id, "profile": i.profile, "start": i.start, "compute_slices": i.compute}
                for i in g.instances
            ],
        }
        for g in gpus
    ]


def state_text(gpus: Sequence[Gpu]) -> str:
    """One line per GPU."""
    return "\n".join(
        "GPU {}  {}  MIG {}{}".format(
            g.index,
            g.name,
            mode_words(g),
            "  " + shape_words(shapes(g.instances)) if g.current else "",
        )
        for g in gpus
    )
