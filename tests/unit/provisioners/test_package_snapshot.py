"""A row's package snapshot: what it may be, where the bake's package sources come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.paths import PROVISIONERS
from kiln.base.recipe import Recipe
from kiln.matrix.load import load_recipes
from kiln.pipeline.plan import input_digest
from tests.unit.provisioners.machine import Machine, plant

MATRIX = """\
defaults:
  instance_type: {x86_64: g4dn.xlarge}
stacks:
  lts:
    driver: 580.178.04
    kernel_module: open
amis:
- {distro: DISTRO, stack: lts}
"""
TIME = "20240301T030400Z"
RELEASE = "2023.9.20251117"
LIST = "etc/apt/sources.list.d/kiln-package-snapshot.list"
STACK = "    kernel_module: open\n"


def load(folder: Path, distro: str, *edits: tuple[str, str]) -> Recipe:
    text = MATRIX.replace("DISTRO", distro)
    for old, new in edits:
        assert old in text
        text = text.replace(old, new, 1)
    (folder / "amis.yaml").write_text(text)
    (recipe,) = load_recipes(folder / "amis.yaml")
    return recipe


def row(value: str) -> tuple[str, str]:
    return "stack: lts}", f"stack: lts, package_snapshot: {value}}}"


def stack(value: str) -> tuple[str, str]:
    return STACK, f"{STACK}    package_snapshot: {value}\n"


def defaults(value: str) -> tuple[str, str]:
    return "defaults:\n", f"defaults:\n  package_snapshot: {value}\n"


def test_row_overrides_stack_and_stack_defaults(tmp_path: Path) -> None:
    other, third = "20240302T000000Z", "20240303T000000Z"
    for edits, value in (
        ([stack(other), defaults(third)], other),
        ([defaults(third)], third),
        ([stack(other), row(TIME)], TIME),
        ([stack(other), row("null")], None),
    ):
        assert load(tmp_path, "debian12", *edits).package_snapshot == value


@pytest.mark.parametrize(
    ("distro", "edit", "place"),
    [
        ("al2023", row(TIME), "8:50: amis.0.package_snapshot: al2023: "),
        ("ubuntu2204", stack("20240301"), "7:23: stacks.lts.package_snapshot: "),
        # No such day.
        ("debian12", row("20240231T000000Z"), "8:52: amis.0.package_snapshot: debian12: "),
        # Before Ubuntu's first.
        ("ubuntu2204", row("20230101T000000Z"), "8:54: amis.0.package_snapshot: ubuntu2204: "),
        # A distribution without snapshots.
        ("al2", defaults(RELEASE), "2:21: defaults.package_snapshot: no archive"),
    ],
)
def test_impossible_snapshot_names_its_place(
    tmp_path: Path, distro: str, edit: tuple[str, str], place: str
) -> None:
    with pytest.raises(KilnError) as caught:
        load(tmp_path, distro, edit)
    assert caught.value.message.startswith(f"amis.yaml:{place}")
    assert caught.value.exit_status == 2


# ------------------------------------------------------------------- the two digests


def test_input_digest_has_recipe_parent_and_snapshot() -> None:
    digests = [
        input_digest("a" * 64, "ami-1", TIME),
        input_digest("b" * 64, "ami-1", TIME),
        input_digest("a" * 64, "ami-2", TIME),
        input_digest("a" * 64, "ami-1", "20240302T000000Z"),
        input_digest("a" * 64, "ami-1", None),
    ]
    assert len(set(digests)) == len(digests)
    assert digests[0] == input_digest("a" * 64, "ami-1", TIME)


def test_recipe_digest_has_snapshot(tmp_path: Path) -> None:
    pinned, unpinned = load(tmp_path, "debian12", row(TIME)), load(tmp_path, "debian12")
    assert pinned.digest() != unpinned.digest()
    assert "package-snapshot" not in unpinned.components


# ------------------------------------------------------------------- the bake


UBUNTU = f"deb https://snapshot.ubuntu.com/ubuntu/{TIME} noble"
DEBIAN = "deb [check-valid-until=no] https://snapshot.debian.org/archive"
PARTS = "main contrib non-free non-free-firmware"
LINES = {
    "ubuntu2404": [f"{UBUNTU}{pocket} " for pocket in ("", "-updates", "-security")],
    "debian12": [
        f"{DEBIAN}/debian/{TIME} bookworm {PARTS}",
        f"{DEBIAN}/debian/{TIME} bookworm-updates {PARTS}",
        f"{DEBIAN}/debian-security/{TIME} bookworm-security {PARTS}",
    ],
}


@pytest.mark.parametrize("distro", LINES)
def test_apt_sources_are_the_archive_at_that_time(tmp_path: Path, distro: str) -> None:
    recipe = load(tmp_path, distro, row(TIME))
    lines = components.get("package-snapshot").for_recipe(recipe).files[LIST].splitlines()
    assert len(lines) == len(LINES[distro])
    assert all(line.startswith(start) for line, start in zip(lines, LINES[distro], strict=True))


def test_amazon_linux_release_is_dnfs_variable(tmp_path: Path) -> None:
    recipe = load(tmp_path, "al2023", row(RELEASE))
    assert recipe.components[0] == "package-snapshot"
    files = components.get("package-snapshot").for_recipe(recipe).files
    assert files == {"etc/dnf/vars/releasever": f"{RELEASE}\n"}


PARENT = {
    "image/etc/apt/sources.list": "deb https://parent/ bookworm main\n",
    "image/etc/apt/sources.list.d/vendor.list": "deb https://vendor/ x main\n",
}


def bake(machine: Machine) -> list[str]:
    """Run package-snapshot.sh; the sources that apt has when it fetches its lists."""
    machine.command("cloud-init", "")
    machine.command("systemctl", "")
    apt = machine.root / "image/etc/apt"
    machine.command(
        "apt-get", f'cat {apt}/sources.list {apt}/sources.list.d/* >"{apt}/seen" || true'
    )
    plant(machine.kiln, {f"files/{LIST}": "deb https://snapshot/ bookworm main\n"})
    script = PROVISIONERS / "package-snapshot.sh"
    machine.works(f'source "{script}"', PACKAGE_SNAPSHOT=TIME)
    return (apt / "seen").read_text().splitlines()


def test_snapshot_is_the_bakes_only_source_until_cleanup(machine: Machine) -> None:
    plant(machine.root, PARENT)
    # A second run finds the parent's sources set aside already, and keeps them.
    for _ in range(2):
        assert bake(machine) == ["deb https://snapshot/ bookworm main"]
    lists = machine.root / "image/etc/apt/sources.list.d"
    plant(lists, {"nvidia-cuda.list": "deb https://nvidia/ /\n"})
    machine.works("kiln_restore_sources")
    for path, text in PARENT.items():
        assert (machine.root / path).read_text() == text
    assert {path.name for path in lists.iterdir()} == {"vendor.list", "nvidia-cuda.list"}
    assert "\nkiln_restore_sources\n" in (PROVISIONERS / "cleanup.sh").read_text()
