"""Which pinned key signs what a bake takes, as `amis.lock.yaml` has it."""

import re
from dataclasses import replace

import pytest

from kiln import components
from kiln.base.errors import KilnError
from kiln.base.paths import PROVISIONERS
from kiln.packer import lock
from tests.unit.locks import CLASSIC, EFA, EFA_KEY, EMPTY, artifact, locked_file


@pytest.fixture
def locked(tmp_path):
    return locked_file(tmp_path)


def test_a_key_file_is_known_by_its_fingerprint(locked):
    url = "https://developer.download.nvidia.com/compute/cuda/repos/rhel7/x86_64/D42D0685.pub"
    assert artifact(locked, url)["fingerprint"].endswith("D42D0685")


def test_a_signature_is_known_by_the_file_it_signs_and_its_key(locked):
    signature = artifact(locked, f"{EFA}.sig")
    assert signature == {
        "url": f"{EFA}.sig",
        "signs": EFA,
        "signed_by": artifact(locked, EFA_KEY)["fingerprint"],
    }


SIGNED = [
    pytest.param(component, file, other, id=f"{component.name}: {other.env}")
    for component in (components.get(name).for_recipe(CLASSIC) for name in CLASSIC.components)
    for file in component.downloads
    for other in component.downloads
    if other.url == f"{file.url}.sig"
]


@pytest.mark.parametrize(("component", "file", "signature"), SIGNED)
def test_what_the_lock_knows_by_its_signature_is_checked_before_it_is_used(
    component, file, signature
):
    lines = (PROVISIONERS / f"{component.name}.sh").read_text().splitlines()
    variable = {
        result[2]: result[1]
        for line in lines
        if (result := re.fullmatch(r"\s*(\w+)=\$\(kiln_download (\w+)\) \|\| exit 1", line))
    }
    (key,) = (name for name in variable if name.endswith("_KEY"))
    (fingerprint,) = component.keys
    archive = f'"${variable[file.env]}"'
    used = next(line.strip() for line in lines if archive in line)
    assert used == (
        f'kiln_check_signature {archive} "${variable[signature.env]}" "${variable[key]}" '
        f'"${fingerprint}"'
    )


@pytest.mark.parametrize("keys", [{}, {"EFA_KEY_FINGERPRINT": "efa", "OTHER": "fsx-lustre"}])
def test_a_signature_without_the_one_key_to_check_it_with_is_refused(monkeypatch, keys):
    efa = components.get("efa")
    bad = replace(efa, keys=keys, urls=efa.urls[:2])
    monkeypatch.setattr(components, "get", lambda name: bad)
    with pytest.raises(KilnError, match=f"names {len(keys)} keys to check it with") as error:
        lock.wanted([CLASSIC], EMPTY)
    assert error.value.exit_status == 2


def test_packages_are_locked_by_repository_key_and_version(locked):
    repositories = {entry["repository"]: entry for entry in lock.load_lock(locked)["packages"]}
    cuda = repositories["https://developer.download.nvidia.com/compute/cuda/repos/rhel7/x86_64"]
    assert cuda["signed_by"].endswith("D42D0685")
    assert "cuda-toolkit-11-6=11.6.2" in cuda["packages"]


def test_the_distributions_own_driver_is_not_said_to_come_from_nvidia():
    recipe = CLASSIC.changed(driver_source="distro")
    (archive,) = [
        entry
        for entry in lock.wanted([recipe], EMPTY)["packages"]
        if entry["repository"] == "archive of al2"
    ]
    assert any(package.endswith("=510.47.03") for package in archive["packages"])
