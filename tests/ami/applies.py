"""Which checks belong to an image: those of its components and of its recipe's settings.

Checks that act on the machine (`exercise`) belong only where that is asked for. What does not
belong is not run and not counted. *Skipped* means something else: the check belongs to the image
and could not be judged here (no GPU, a lab's stand-in), and says why.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Expectations = dict[str, Any]


def only_if(condition: Callable[[Expectations], object]) -> pytest.MarkDecorator:
    """The check belongs to images that meet `condition`, called with the content of KILN_EXPECT."""
    return pytest.mark.only_if.with_args(condition)


def recipe_has(field: str) -> pytest.MarkDecorator:
    """The check belongs to recipes in which this field is set."""
    return only_if(lambda expect: expect["recipe"].get(field))


def component_of(path: Path) -> str:
    """test_nvidia_driver.py → nvidia-driver."""
    return path.stem.removeprefix("test_").replace("_", "-")


def belongs(item: pytest.Item, expect: Expectations) -> bool:
    """Whether the check belongs to the expected image."""
    component = component_of(item.path)
    # A component has a provisioner of its name beside tests/, here as in an overlay.
    is_component = (item.path.parents[2] / "provisioners" / f"{component}.sh").exists()
    if is_component and component not in expect["recipe"]["components"]:
        return False
    if item.get_closest_marker("exercise") and not expect.get("exercise"):
        return False
    return all(mark.args[0](expect) for mark in item.iter_markers("only_if"))
