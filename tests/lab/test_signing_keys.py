"""When a vendor's host serves another key than the facts name, the bake stops at that component.

The lab's mirror signs with keys of its own. A script that is given the vendors' real fingerprints
meets a mirror that serves, and signs with, another key.
"""

from __future__ import annotations

import base64
import io
import shlex
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from conftest import Guest, launching

from kiln import components
from kiln.base.paths import KNOWLEDGE, PROVISIONERS
from kiln.base.recipe import Recipe
from kiln.components import rendered
from kiln.matrix.load import load_recipes
from lab.vendors import mirror

KEYS = yaml.safe_load((KNOWLEDGE / "keys.yaml").read_text())["keys"]
UBUNTU = "/aws/service/canonical/ubuntu/server/22.04/stable/current/amd64/hvm/ebs-gp2/ami-id"
# The key in the facts, the component that checks it, on Amazon Linux 2 or on Ubuntu 22.04.
CASES = [
    ("nvidia-cuda-rpm", "nvidia-repo", "al2"),
    ("nvidia-cuda-deb", "nvidia-repo", "ubuntu2204"),
    ("nvidia-container-toolkit", "container-toolkit", "al2"),
    ("efa", "efa", "al2"),
    ("cloudwatch-agent", "cloudwatch-agent", "ubuntu2204"),
    ("fsx-lustre", "lustre-client", "ubuntu2204"),
]
# A package manager's and a file's; the others with --all.
DEFAULT = (CASES[0], CASES[3])
# What a package manager trusts, and its package sources. Without the number of a file's names: that
# is of the base's file, and grows when another test makes a base.
TRUST = """
find /usr/share/keyrings /etc/apt/trusted.gpg.d /etc/apt/sources.list.d \
    /etc/pki/rpm-gpg /etc/yum.repos.d -not -type d -printf '%M %u %g %s %p %l\\n' 2>/dev/null | sort
rpm -qa 'gpg-pubkey*' 2>/dev/null
sudo ls /root/.gnupg 2>/dev/null
(dpkg-query -W 2>/dev/null || rpm -qa) | sort | sha256sum
ls -d /opt/amazon/efa /opt/aws 2>/dev/null
true
"""


@pytest.fixture(scope="module")
def instance(
    ec2: Any,
    key: tuple[str, Path],
    source_ami: str,
    client: Callable[[str], Any],
) -> Iterator[Callable[[str], Guest]]:
    """The build instance of a distribution, with the upload on it and a kernel that will boot.

    The cases of a distribution share it: each compares it with what it was before.
    """
    made: dict[str, Guest] = {}
    with launching(ec2, key, source_ami) as launch:

        def of(distro: str) -> Guest:
            if distro not in made:
                if distro == "al2":
                    made[distro] = launch()
                else:
                    ami = client("ssm").get_parameter(Name=UBUNTU)["Parameter"]["Value"]
                    made[distro] = launch(ami, user="ubuntu")
                upload(made[distro])
            return made[distro]

        yield of


def upload(made: Guest) -> None:
    """Put the provisioners where Packer puts them."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as tar:
        for path in (PROVISIONERS / "lib", *PROVISIONERS.glob("*.sh")):
            tar.add(path, path.name)
    text = base64.b64encode(packed.getvalue()).decode()
    done = made.run(
        "sudo mkdir -p /var/tmp/kiln /etc/kiln && echo 5.15.0-1 | sudo tee /etc/kiln/kernel && "
        f"echo {text} | base64 -d | sudo tar -xz --no-same-owner -C /var/tmp/kiln"
    )
    assert done.returncode == 0, done.stderr


def recipe_with(component: str, distro: str) -> Recipe:
    """A row of that distribution, one with the component where there is one."""
    rows = [row for row in load_recipes() if row.distro.id == distro]
    return next((row for row in rows if component in row.components), rows[0])


def provision(guest: Guest, component: str, recipe: Recipe, keys: dict[str, str]) -> Any:
    """Run a component's script as Packer does, with these fingerprints."""
    chosen = components.get(component).for_recipe(recipe)
    fingerprints = {name: keys[key] for name, key in chosen.keys.items()}
    given = {
        **rendered.component_variables(chosen),
        **fingerprints,
        "KILN_COMPONENT": component,
        "KILN_DIR": "/var/tmp/kiln",
        "KILN_DISTRO": recipe.distro.id,
        "KILN_FAMILY": recipe.distro.family,
        "KILN_PACKAGE_MANAGER": recipe.distro.package_manager,
    }
    words = " ".join(shlex.quote(f"{name}={text}") for name, text in given.items())
    return guest.run(f"sudo -n env {words} bash /var/tmp/kiln/{component}.sh")


@pytest.mark.parametrize(
    ("vendor", "component", "distro"),
    [
        pytest.param(
            *case, id=f"{case[0]}-{case[2]}", marks=() if case in DEFAULT else pytest.mark.all
        )
        for case in CASES
    ],
)
def test_unpinned_key_is_refused_and_leaves_nothing(
    vendor: str, component: str, distro: str, instance: Callable[[str], Guest]
) -> None:
    guest = instance(distro)
    recipe = recipe_with(component, distro)
    before = guest.run(TRUST).stdout
    real = {name: entry["fingerprint"] for name, entry in KEYS.items()}
    done = provision(guest, component, recipe, real)
    assert done.returncode == 1, done.stderr
    message = (
        f"holds the wrong key: expected {real[vendor]}, got {mirror.key_fingerprints()[vendor]}"
    )
    assert message in done.stderr
    assert f"kiln: {component}: ERROR: " in done.stderr
    assert guest.run(TRUST).stdout == before
    assert guest.run(f"test -e /etc/kiln/components/{component}.json").returncode == 1
    # The right key is accepted, so nothing else stopped the script.
    accepted = provision(guest, component, recipe, mirror.key_fingerprints())
    assert "holds the wrong key" not in accepted.stderr
    assert guest.run(TRUST).stdout != before
