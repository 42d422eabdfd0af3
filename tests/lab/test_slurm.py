"""Debian's Slurm on two guests: a fatal Xid drains the node, a reboot brings it back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import guests
import pytest
import slurm_cluster
from slurm_cluster import NODE, Controller, Node

from lab.base import settings

pytestmark = [guests.IN_CELL, pytest.mark.all]
Cluster = tuple[Controller, Node]
FIRST, SECOND = slurm_cluster.CODES


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    home = tmp_path_factory.mktemp("slurm")
    with slurm_cluster.cluster(home, settings.current().index) as (controller, node):
        yield controller, node


@pytest.fixture
def idle(cluster: Cluster) -> Cluster:
    """The cluster with its node idle, whatever a test before has left."""
    controller, node = cluster
    controller.run("scancel", "--user=games")
    if controller.state()["State"] != "IDLE":
        controller.run("scontrol", "update", f"NodeName={NODE}", "State=RESUME", check=False)
    controller.becomes("IDLE")
    hook(node).chmod(0o755)
    return cluster


def hook(node: Node) -> Path:
    """The hook for Slurm. It is off at a boot: lines of tests before are still in the kernel log,
    which a guest shares with this machine."""
    return node.root / slurm_cluster.HOOK


def strike(node: Node, code: int) -> None:
    """A fatal Xid in the kernel log, until the hooks are through with it."""
    before = len(node.read("/root/done").splitlines())
    node.xid(1, 1, code=code)
    assert node.until(lambda: len(node.read("/root/done").splitlines()) > before)
    event = json.loads(node.read("/root/done").splitlines()[-1])
    assert (event["xid"], event["severity"]) == (code, "fatal")


def test_fatal_xid_drains_the_node_until_its_reboot(
    idle: Cluster,
) -> None:
    controller, node = idle
    controller.job(600)
    strike(node, FIRST)
    drained = controller.state()
    assert drained["State"] == "ALLOCATED+DRAIN+REBOOT_REQUESTED"
    assert drained["Reason"].startswith(f"Xid {FIRST} on 0000:00:1e: ")
    # A second one changes nothing: not the reason, not since when.
    strike(node, SECOND)
    again = controller.state()
    assert (again["State"], again["Reason"]) == (drained["State"], drained["Reason"])
    assert "RUNNING" in controller.run("squeue", "--format=%T")
    controller.run("scancel", "--user=games")
    assert node.nspawn and node.nspawn.wait(120) == guests.REBOOT
    assert controller.state()["State"] == "DOWN+DRAIN+REBOOT_ISSUED"
    hook(node).chmod(0o644)
    node.boot()
    controller.becomes("IDLE")
    controller.job(1)


def test_node_that_an_administrator_drained_is_not_rebooted(
    idle: Cluster,
) -> None:
    controller, node = idle
    words = ("update", f"NodeName={NODE}", "State=DRAIN", "Reason=new disk")
    controller.run("scontrol", *words)
    strike(node, FIRST)
    left = controller.state()
    assert left["State"] == "IDLE+DRAIN"
    assert left["Reason"].startswith("new disk [root@")
