"""A row's package snapshot: what it may be, where the bake's package sources come from."""

from __future__ import annotations

from pathlib import Path

import pytest
from test_provisioners import Machine, plant

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.paths import PROVISIONERS
from kiln.base.recipe import Recipe
from kiln.matrix.load import load_recipes
from kiln.pipeline.plan import input_digest
from lab.target import LabTarget

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


@pytest.mark.parametrize(
    ("distro", "value"),
    [("al2023", RELEASE), ("ubuntu2004", TIME), ("ubuntu2404", TIME), ("debian12", TIME)],
)
def test_a_row_is_pinned_in_the_form_of_its_distribution(
    tmp_path: Path, distro: str, value: str
) -> None:
    recipe = load(tmp_path, distro, row(value))
    assert recipe.package_snapshot == value
    assert recipe.components[0] == "package-snapshot"


def test_a_row_without_a_snapshot_has_no_such_component(tmp_path: Path) -> None:
    recipe = load(tmp_path, "debian12")
    assert recipe.package_snapshot is None
    assert "package-snapshot" not in recipe.components


def test_the_row_comes_before_the_stack_and_the_stack_before_the_defaults(tmp_path: Path) -> None:
    other, third = "20240302T000000Z", "20240303T000000Z"
    both = load(tmp_path, "debian12", stack(other), defaults(third))
    assert both.package_snapshot == other
    assert load(tmp_path, "debian12", defaults(third)).package_snapshot == third
    assert load(tmp_path, "debian12", stack(other), row(TIME)).package_snapshot == TIME
    assert load(tmp_path, "debian12", stack(other), row("null")).package_snapshot is None


MISTAKES = {
    "a time for Amazon Linux 2023": (
        "al2023",
        row(TIME),
        "amis.yaml:8:50: amis.0.package_snapshot: al2023: '20240301T030400Z' is not a release of "
        "Amazon Linux 2023 such as 2023.9.20251117",
    ),
    "latest": (
        "al2023",
        row("latest"),
        "amis.yaml:8:50: amis.0.package_snapshot: al2023: 'latest'",
    ),
    "a day for Ubuntu": (
        "ubuntu2204",
        stack("20240301"),
        "amis.yaml:7:23: stacks.lts.package_snapshot: ",
    ),
    "a day that is not in the calendar": (
        "debian12",
        row("20240231T000000Z"),
        "amis.yaml:8:52: amis.0.package_snapshot: debian12: '20240231T000000Z' is not a UTC time "
        "such as 20240301T030400Z, as snapshot.debian.org takes it: there is no such day or time",
    ),
    "before Ubuntu's first": (
        "ubuntu2204",
        row("20230101T000000Z"),
        "amis.yaml:8:54: amis.0.package_snapshot: ubuntu2204: '20230101T000000Z' is before "
        "20230301T000000Z",
    ),
    "a distribution without snapshots": (
        "al2",
        row(TIME),
        "amis.yaml:8:47: amis.0.package_snapshot: no archive keeps old states of the repositories "
        "of al2, so its packages cannot be pinned.",
    ),
    "a default that a distribution cannot have": (
        "al2",
        defaults(RELEASE),
        "amis.yaml:2:21: defaults.package_snapshot: no archive keeps",
    ),
}


@pytest.mark.parametrize(("distro", "edit", "message"), MISTAKES.values(), ids=MISTAKES.keys())
def test_a_snapshot_that_cannot_be_is_one_message_with_its_place(
    tmp_path: Path, distro: str, edit: tuple[str, str], message: str
) -> None:
    with pytest.raises(KilnError) as caught:
        load(tmp_path, distro, edit)
    (line,) = caught.value.message.splitlines()
    assert line.startswith(message), line
    assert caught.value.exit_status == 2


# ------------------------------------------------------------------- the two digests


def test_the_input_digest_changes_with_recipe_parent_and_snapshot() -> None:
    digests = [
        input_digest("a" * 64, "ami-1", TIME),
        input_digest("b" * 64, "ami-1", TIME),
        input_digest("a" * 64, "ami-2", TIME),
        input_digest("a" * 64, "ami-1", "20240302T000000Z"),
        input_digest("a" * 64, "ami-1", None),
    ]
    assert len(set(digests)) == len(digests)
    assert digests[0] == input_digest("a" * 64, "ami-1", TIME)


def test_a_snapshot_makes_another_recipe_and_a_moved_row_does_not(tmp_path: Path) -> None:
    here = load(tmp_path, "debian12", row(TIME))
    moved = load(tmp_path, "debian12", row(TIME), ("amis:", "\n\namis:"))
    assert here.row.line != moved.row.line
    assert here.digest() == moved.digest()
    assert here.digest() != load(tmp_path, "debian12").digest()


# ------------------------------------------------------------------- the bake


def sources(folder: Path, distro: str) -> str:
    recipe = load(folder, distro, row(TIME))
    return components.get("package-snapshot").for_recipe(recipe).files[LIST]


def test_debians_sources_are_the_archive_and_its_security_archive_of_that_time(
    tmp_path: Path,
) -> None:
    where = "deb [check-valid-until=no] https://snapshot.debian.org/archive"
    parts = "main contrib non-free non-free-firmware"
    assert sources(tmp_path, "debian12").splitlines() == [
        f"{where}/debian/{TIME} bookworm {parts}",
        f"{where}/debian/{TIME} bookworm-updates {parts}",
        f"{where}/debian-security/{TIME} bookworm-security {parts}",
    ]


@pytest.mark.parametrize(
    ("distro", "codename"),
    [("ubuntu2004", "focal"), ("ubuntu2204", "jammy"), ("ubuntu2404", "noble")],
)
def test_ubuntus_sources_are_all_pockets_of_that_time(
    tmp_path: Path, distro: str, codename: str
) -> None:
    lines = sources(tmp_path, distro).splitlines()
    where = f"deb https://snapshot.ubuntu.com/ubuntu/{TIME}"
    assert [line.rsplit(" ", 4)[0] for line in lines] == [
        f"{where} {codename}{pocket}" for pocket in ("", "-updates", "-security")
    ]


def test_amazon_linuxs_release_is_dnfs_variable(tmp_path: Path) -> None:
    recipe = load(tmp_path, "al2023", row(RELEASE))
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
    done = machine.bash(f'source "{script}"', PACKAGE_SNAPSHOT=TIME)
    assert done.returncode == 0, done.stderr
    return (apt / "seen").read_text().splitlines()


def test_the_bake_takes_packages_from_the_snapshot_alone(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    plant(tmp_path, PARENT)
    assert bake(machine) == ["deb https://snapshot/ bookworm main"]
    # A second run finds the parent's sources set aside already, and keeps them.
    assert bake(machine) == ["deb https://snapshot/ bookworm main"]


def test_at_the_end_the_parents_sources_are_back_beside_those_of_components(
    tmp_path: Path,
) -> None:
    machine = Machine(tmp_path)
    plant(tmp_path, PARENT)
    bake(machine)
    plant(tmp_path, {"image/etc/apt/sources.list.d/nvidia-cuda.list": "deb https://nvidia/ /\n"})
    done = machine.bash("kiln_restore_sources")
    assert done.returncode == 0, done.stderr
    for path, text in PARENT.items():
        assert (tmp_path / path).read_text() == text
    lists = tmp_path / "image/etc/apt/sources.list.d"
    assert {path.name for path in lists.iterdir()} == {"vendor.list", "nvidia-cuda.list"}


def test_cleanup_puts_the_parents_sources_back() -> None:
    assert "\nkiln_restore_sources\n" in (PROVISIONERS / "cleanup.sh").read_text()


def test_the_lab_refuses_a_snapshot_that_it_has_no_state_of(tmp_path: Path) -> None:
    recipe = load(tmp_path, "debian12", row(TIME))
    with pytest.raises(KilnError, match="the lab has no state 20240301T030400Z") as caught:
        LabTarget("a test").hooks._prepare([recipe], print)
    assert caught.value.exit_status == 2
