"""`build --vendors real` on Ubuntu itself, from its own archive; a server plays the other vendors.

Ubuntu's kernel, its headers and a compiler are some 600 MB.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest
import yaml
from conftest import ROOT, another_lab, lab_of_the_tests
from test_vendors import internet

from kiln import components
from kiln.base.recipe import Recipe
from kiln.components import package_repositories
from kiln.matrix import load
from lab.daemon import control
from lab.machine import dns
from lab.vendors import mirror
from lab.vendors.mirror import ca

# This machine, too, asks the hosts that are played at the server's address.
RESOLVED = """\
import os, socket
asked = socket.getaddrinfo
hosts = set(os.environ.get("PLAYED", "").split())
def getaddrinfo(host, *args, **more):
    return asked(os.environ["PLAYED_AT"] if host in hosts else host, *args, **more)
socket.getaddrinfo = getaddrinfo
"""

pytestmark = pytest.mark.all


@dataclass(frozen=True)
class Built:
    """The record of the build, and the requests that arrived at the server."""

    record: dict[str, Any]
    requests: str


def answers(url: str) -> bool:
    """Whether this machine reaches a file of Ubuntu's archive."""
    with contextlib.suppress(OSError), urlopen(url, timeout=20) as answer:
        return bool(answer.status == 200)
    return False


def write_inputs(home: Path) -> Recipe:
    """A matrix of one row of Ubuntu without a snap, and the server's keys and files as facts."""
    matrix = yaml.safe_load((ROOT / "amis.yaml").read_text())
    lts = {
        key: str(value) if isinstance(value, float) else value
        for key, value in matrix["stacks"]["lts"].items()
    }
    row = {"distro": "ubuntu2404", "stack": "lts", "cudnn": "9.20.0.48"}
    rows = [{**row, "without": ["lustre-client", "ssm-agent"]}]
    of_matrix = {"defaults": matrix["defaults"], "stacks": {"lts": lts}, "amis": rows}
    write(home / "amis.yaml", of_matrix)
    (recipe,) = load.load_recipes(home / "amis.yaml")
    steps = [components.get(name).for_recipe(recipe) for name in recipe.components]
    urls = [download.url for step in steps for download in step.downloads]
    source = "https://example.com"
    hashes = [{"url": u, "source": source, "sha256": {"1": mirror.sha256(u)}} for u in urls]
    fingerprints = mirror.key_fingerprints()
    keys = {name: {"fingerprint": fingerprint} for name, fingerprint in fingerprints.items()}
    facts = home / "overlay/facts"
    facts.mkdir(parents=True)
    write(facts / "checksums.yaml", {"files": hashes})
    write(facts / "keys.yaml", {"keys": keys})
    return recipe


def write(path: Path, data: object) -> None:
    """Data as YAML, in the order in which it is given."""
    path.write_text(yaml.safe_dump(data, sort_keys=False))


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Built]:
    lab_of_the_tests()
    # The lab of the other tests has the stand-ins.
    lab = another_lab(__file__)
    home = tmp_path_factory.mktemp("ubuntu")
    archive = package_repositories.row_repositories(write_inputs(home), ())[0].release_files()[0]
    if not answers(archive):
        pytest.skip("Ubuntu's archive cannot be reached")
    (home / "sitecustomize.py").write_text(RESOLVED)
    trusted = Path("/etc/ssl/certs/ca-certificates.crt").read_text()
    (home / "trusted.pem").write_text(trusted + ca.ensure().certificate.read_text())
    hosts = [host for host in mirror.vendor_hosts() if not host.endswith(".internal")]
    resolver = f"127.0.{lab.index}.53"
    with contextlib.ExitStack() as until_done:
        place = until_done.enter_context(internet(lab, home / "requests"))
        names = dns.Resolver(resolver, lambda name: place if name in hosts else None)
        until_done.callback(names.close)
        until_done.callback(control.clean, lab)
        environment = {
            **os.environ,
            "KILN_LAB_INDEX": str(lab.index),
            "KILN_LAB_RESOLVER": resolver,
            "KILN_MATRIX": f"{home}/amis.yaml",
            "KILN_LOCK": f"{home}/amis.lock.yaml",
            "KILN_OVERLAY": f"{home}/overlay",
            "KILN_PACKER_DIR": f"{home}/packer",
            "KILN_BUILD_DIR": f"{home}/build",
            "XDG_CACHE_HOME": f"{home}/cache",
            "PYTHONPATH": str(home),
            "PLAYED": " ".join(hosts),
            "PLAYED_AT": place,
            "REQUESTS_CA_BUNDLE": f"{home}/trusted.pem",
        }
        build = ["build", "--vendors", "real", "--target", "lab", "--json"]
        for words in (["lock", "--update"], ["render"], build):
            done = subprocess.run(
                [ROOT / "invoke", *words],
                env=environment,
                cwd=ROOT,
                check=False,
                capture_output=True,
                text=True,
            )
            assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
        (record,) = json.loads(done.stdout)
        yield Built(record, (home / "requests").read_text())


def test_an_image_of_ubuntu_itself_is_verified(built: Built) -> None:
    assert (built.record["status"], built.record["vendors"]) == ("verified", "real")
    failed = [c for c in built.record["checks"]["checks"] if c["outcome"] == "failed"]
    assert failed == []


def test_its_kernel_and_its_packages_are_ubuntus(built: Built) -> None:
    packages = {package["name"]: package for package in built.record["versions"]["packages"]}
    assert "~24.04." in packages["linux-aws"]["release"] + packages["linux-aws"]["version"]
    assert "ubuntu" in packages["bash"]["release"]


def test_what_is_not_ubuntus_came_from_the_other_vendors_hosts(built: Built) -> None:
    others = ("developer.download.nvidia.com", "nvidia.github.io", "efa-installer.amazonaws.com")
    for host in others:
        assert f"GET https://{host}/" in built.requests
    assert "/ubuntu/dists/" not in built.requests
