"""Nights on which the distribution publishes updates: what is rebuilt, and what is left alone.

The lab's mirror is Amazon Linux's archive: a test publishes updates there between two nights.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import users_environment

from devel.campaign.testbed import bare_checkout
from lab import settings
from tests.unit.rows import row

AL2 = row("al2/classic/base/x86_64").name
AL2023 = row("al2023/lts/base/x86_64").name


@dataclass(frozen=True)
class World:
    """A user with a matrix of two rows."""

    home: Path
    checkout: Path

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        environment = users_environment(self.home)
        environment |= {
            "KILN_MATRIX": str(self.home / "amis.yaml"),
            "XDG_CACHE_HOME": str(self.home / "cache"),
        }
        return subprocess.run(
            [self.checkout / "invoke", *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )

    def night(self) -> dict[str, tuple[str, str]]:
        """Row → what became of it and why."""
        done = self.run("nightly", "--target", "lab", "--json")
        assert done.returncode == 0, done.stdout + done.stderr
        return {row["row"]: (row["action"], row["why"]) for row in json.loads(done.stdout)}

    def publish(self, package: str, version: str, *more: str) -> None:
        chosen = ("--distro", "al2", "--package", package, "--version", version)
        done = self.run("lab.update", *chosen, *more)
        assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def world(lab: settings.Lab, tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    checkout = bare_checkout(
        tmp_path_factory.mktemp("checkout"), "nvidia-repo", baked=("kernel", "version-info")
    )
    made = World(tmp_path_factory.mktemp("nights"), checkout)
    matrix = yaml.safe_load((checkout / "amis.yaml").read_text())
    matrix["amis"] = [{"distro": "al2", "stack": "classic"}, {"distro": "al2023", "stack": "lts"}]
    (made.home / "amis.yaml").write_text(yaml.safe_dump(matrix, sort_keys=False))
    yield made
    (lab.state / "updates.json").unlink(missing_ok=True)


@pytest.fixture(scope="module")
def first(world: World) -> dict[str, tuple[str, str]]:
    return world.night()


def launched(client: Callable[[str], Any]) -> int:
    pages = client("ec2").describe_instances()["Reservations"]
    return sum(len(page["Instances"]) for page in pages)


def test_the_first_night_builds_and_the_next_launches_nothing(
    world: World, first: dict[str, tuple[str, str]], client: Callable[[str], Any]
) -> None:
    assert {row: action for row, (action, _) in first.items()} == {AL2: "built", AL2023: "built"}
    before = launched(client)
    second = world.night()
    assert {action for action, _ in second.values()} == {"skipped"}
    assert "lacks no published security update" in second[AL2][1]
    assert launched(client) <= before


@pytest.mark.usefixtures("first")
def test_an_update_that_fixes_no_vulnerability_launches_nothing(
    world: World, client: Callable[[str], Any]
) -> None:
    world.publish("bzip2", "1.0.7-1.amzn2")
    before = launched(client)
    assert {action for action, _ in world.night().values()} == {"skipped"}
    assert launched(client) <= before


@pytest.mark.usefixtures("first")
def test_a_security_update_builds_the_rows_of_its_distribution_once(world: World) -> None:
    world.publish("curl", "8.4.0-1.amzn2", "--advisory", "ALAS2-2026-0001")
    night = world.night()
    assert night[AL2][0] == "built"
    assert night[AL2][1].endswith(
        "has 1 pending security update: curl 8.3.0-1.amzn2 → 8.4.0-1.amzn2"
    )
    assert night[AL2023][0] == "skipped"
    # The bake has installed it.
    assert {action for action, _ in world.night().values()} == {"skipped"}
