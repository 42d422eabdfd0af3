"""A component of an overlay in Python that does what it should not: one message, exit status 2."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kiln import components
from kiln.base.errors import KilnError
from kiln.cli.matrix import check_answer, findings_text
from kiln.compat import engine
from kiln.matrix.load import load_recipes
from kiln.packer import render
from tests.unit import caches

MODULE = """import sys
from kiln.components.component import Component, Download
AFTER = "tuning"
{code}
COMPONENT = Component(name="acme-x", what="x", {arguments})
"""
SCRIPT = '#!/bin/bash\nsource "${KILN_DIR:?}/lib/kiln.sh"\n'


class Module:
    """An overlay with one component in Python."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.path = folder / "components/acme_x.py"
        for name in ("components", "provisioners"):
            (folder / name).mkdir(parents=True)
        (folder / "provisioners/acme-x.sh").write_text(SCRIPT)

    def write(self, arguments: str = "", code: str = "") -> None:
        self.path.write_text(MODULE.format(code=code, arguments=arguments))


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Module]:
    monkeypatch.setenv("KILN_OVERLAY", str(tmp_path / "overlay"))
    caches.forget()
    yield Module(tmp_path / "overlay")
    caches.forget()


def test_module_may_have_dataclasses_and_mappings(module: Module) -> None:
    module.write(
        "environment=lambda r: MappingProxyType({'ACME': Site('x').name}), "
        "downloads=lambda r: [Download('ACME', 'https://a.example/x')]",
        code="from dataclasses import dataclass\nfrom types import MappingProxyType\n"
        "@dataclass(frozen=True)\nclass Site:\n    name: str",
    )
    step = components.get("acme-x").for_recipe(load_recipes()[0])
    assert step.env == {"ACME": "x"}
    assert [each.url for each in step.downloads] == ["https://a.example/x"]


@pytest.mark.parametrize("name", ["/etc/x", "etc/../../x"])
def test_file_that_leaves_the_image_is_refused(module: Module, name: str) -> None:
    module.write(f"files=lambda r: {{{name!r}: 'y'}}")
    with pytest.raises(KilnError, match="below /") as caught:
        render.render(load_recipes()[0])
    assert caught.value.exit_status == 2


# A component's files, files of the overlay's runtime/ → the file that is in two places.
AGENTS = "opt/aws/amazon-cloudwatch-agent/etc/amazon-cloudwatch-agent.d/kiln-events.json"
TAKEN = {
    "AMI Kiln's": (["etc/kiln/recipe.json"], []),
    "the agent's": ([AGENTS], []),
    "one of runtime/": (["etc/kiln/gpu-xid.json"], []),
    "runtime/ over what is rendered": ([], ["etc/kiln/recipe.json"]),
    "runtime/ over its own component": (["etc/acme"], ["etc/acme"]),
}


@pytest.mark.parametrize("what", TAKEN)
def test_file_in_the_place_of_another_is_refused(module: Module, what: str) -> None:
    files, runtime = TAKEN[what]
    module.write(f"files=lambda r: {dict.fromkeys(files, 'y')}")
    for name in runtime:
        path = module.folder / "runtime" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    recipe = next(each for each in load_recipes() if "cloudwatch-agent" in each.components)
    problems = [each for each in engine.check_recipe(recipe) if each.rule == "rendered-files"]
    (head,) = {str(each).splitlines()[0] for each in problems}
    place = f"runtime/{runtime[0]}" if runtime else "components/acme_x.py"
    assert head.startswith(f"{module.folder}/{place}: ")
    assert repr((files or runtime)[0]) in head
    with pytest.raises(KilnError) as caught:
        render.render(recipe)
    assert caught.value.exit_status == 2


def test_check_names_replaced_files(module: Module) -> None:
    module.write()
    path = module.folder / "runtime/etc/kiln/gpu-xid.json"
    path.parent.mkdir(parents=True)
    path.write_text("{}")
    answer = check_answer({}, strict=False)
    assert answer["replaced"] == {"runtime/etc/kiln/gpu-xid.json": str(path)}
    assert not [each for each in answer["findings"] if each["rule"] == "rendered-files"]
    assert findings_text(answer).endswith(
        f"the overlay replaces runtime/etc/kiln/gpu-xid.json by {path}"
    )
