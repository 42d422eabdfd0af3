"""Which security updates an image lacks: its record against what a distribution publishes.

The distributions are a local HTTPS server with repositories in their form (vendor_site.py).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from preflight_vendors import Vendors, row, signer, vendors
from vendor_site import Pkg, Signer, deb_repository, rpm_repository

from kiln.base.recipe import Recipe
from kiln.base.tags import RUN_ID
from kiln.cloud.aws_target import AwsTarget
from kiln.cloud.runs import Run
from kiln.cloud.target import PackageArchive
from kiln.pipeline.record import write_record
from kiln.preflight import security
from kiln.preflight.indexes import Index
from kiln.preflight.security import ask_security
from kiln.publish.own_images import OwnImage
from kiln.publish.pending_updates import Lacking, lacking_updates
from tests.unit.records import a_record

# The fixtures that tests name.
__all__ = ["signer", "vendors"]

AWS = AwsTarget("a test", "us-east-1", account="123456789012")
DEBIAN = row("debian12/debian/base/x86_64")
AL2 = row("al2/classic/base/x86_64")
AL2023 = row("al2023/lts/base/x86_64")
RUN, AMI = "20261101T000000Z-aaaa", "ami-0fade000"
MIRROR_LISTS = [
    "/cdn.amazonlinux.com/2/core/latest/x86_64/mirror.list",
    "/cdn.amazonlinux.com/2/extras/kernel-5.10/latest/x86_64/mirror.list",
]


@dataclass
class Distributions:
    """Their security repositories; the test's images."""

    vendors: Vendors
    signer: Signer
    build: Path
    asked: list[str] = field(default_factory=list)

    def debian(self, *packages: Pkg, until: datetime | None = None) -> None:
        parts = ("main", "contrib", "non-free", "non-free-firmware")
        suite = "bookworm-security"
        made = deb_repository(
            self.signer, "amd64", list(packages), suite=suite, parts=parts, until=until
        )
        base = "/deb.debian.org/debian-security"
        self.vendors.site.files |= {f"{base}/{path}": data for path, data in made.items()}
        key = "/deb.debian.org/debian/pool/main/d/debian-archive-keyring/"
        name = "debian-archive-keyring_2023.3+deb12u2_all.deb"
        self.vendors.site.files[key + name] = self.signer.key_file

    def amazon(self, *advisories: tuple[str, str, str], listed: bool = True) -> None:
        """Advisories of Amazon Linux 2's core: type, package, version; the kernels' has none."""
        for index, path in enumerate(MIRROR_LISTS):
            text = _updateinfo(advisories if index == 0 else ()) if listed else ""
            base = f"/cdn.amazonlinux.com/mirror{index}"
            self.vendors.site.files[path] = f"https://cdn.amazonlinux.com/mirror{index}/\n".encode()
            made = rpm_repository(None, "x86_64", [], text)
            self.vendors.site.files |= {f"{base}/{name}": data for name, data in made.items()}

    def image(self, recipe: Recipe, *packages: dict[str, str], **info: Any) -> None:
        """An image of the recipe, with its record here."""
        versions = {"packages": list(packages), **info}
        folder = self.build / recipe.name / RUN
        folder.mkdir(parents=True, exist_ok=True)
        record = a_record(run_id=RUN, recipe=recipe.as_json(), ami_id=AMI, versions=versions)
        write_record(Run(RUN, recipe.name, folder), record)

    def lacking(self, recipe: Recipe, bring: Any = lambda runs: None) -> Lacking | None:
        created = datetime(2026, 11, 1, tzinfo=timezone.utc)
        tags = {RUN_ID: RUN}
        image = OwnImage("r", AMI, "n", "available", created, None, tags, (), False, None)
        return lacking_updates([(recipe, image)], AWS, bring).get(recipe.name)

    def names(self, recipe: Recipe) -> list[str]:
        lacking = self.lacking(recipe)
        assert lacking is not None
        assert lacking.unknown == ""
        return [str(update) for update in lacking.updates]


def _updateinfo(advisories: tuple[tuple[str, str, str], ...]) -> str:
    """The form of vuln-list-update's amazon/testdata/fixtures at 93a59be8."""
    updates = ""
    for number, (kind, package, full) in enumerate(advisories):
        version, _, release = full.partition("-")
        updates += (
            f'<update author="linux-security@amazon.com" from="linux-security@amazon.com" '
            f'status="final" type="{kind}" version="1.4"><id>ALAS2-2026-{number}</id>'
            '<pkglist><collection short="amazon-linux-2---core"><name>Amazon Linux 2</name>'
            f'<package arch="x86_64" epoch="0" name="{package}" release="{release}" '
            f'version="{version}"><filename>x.rpm</filename></package>'
            f'<package arch="aarch64" epoch="0" name="{package}" release="999" '
            f'version="{version}"><filename>x.rpm</filename></package>'
            "</collection></pkglist></update>"
        )
    return f'<?xml version="1.0" ?>\n<updates>{updates}</updates>'


def deb(name: str, version: str, release: str, arch: str = "amd64") -> dict[str, str]:
    return _package("dpkg", name, version, release, arch)


def rpm(name: str, version: str, release: str, arch: str = "x86_64") -> dict[str, str]:
    return _package("rpm", name, version, release, arch)


def _package(manager: str, name: str, version: str, release: str, arch: str) -> dict[str, str]:
    return {
        "manager": manager,
        "name": name,
        "epoch": "0",
        "version": version,
        "release": release,
        "arch": arch,
    }


OPENSSL = deb("openssl", "3.0.17", "1~deb12u2")
FIXED = Pkg("openssl", "3.0.17-1~deb12u3")


@pytest.fixture
def distributions(
    vendors: Vendors, signer: Signer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Distributions:
    monkeypatch.setenv("KILN_BUILD_DIR", str(tmp_path / "build"))
    hosts = ("http://deb.debian.org", "https://cdn.amazonlinux.com")
    pairs = [f"{host}={vendors.site.url}/{host.partition('//')[2]}" for host in hosts]
    monkeypatch.setenv("KILN_MIRRORS", " ".join(pairs))
    return Distributions(vendors, signer, tmp_path / "build")


def test_a_package_that_the_security_suite_has_in_a_newer_version_is_named(
    distributions: Distributions,
) -> None:
    distributions.debian(FIXED, Pkg("tar", "1.34-1"), Pkg("not-installed", "9-1"))
    distributions.image(DEBIAN, OPENSSL, deb("tar", "1.34", "1"), deb("libc6", "2.36", "9"))
    lacking = distributions.lacking(DEBIAN)
    assert str(lacking) == (
        "1 pending security update: openssl 3.0.17-1~deb12u2 → 3.0.17-1~deb12u3"
    )
    # What is no security update is not even asked for.
    asked = [path for path in distributions.vendors.site.asked if "/dists/" in path]
    assert all("/dists/bookworm-security/" in path for path in asked)


def test_many_updates_are_counted_and_three_are_named(distributions: Distributions) -> None:
    names = [f"package{number}" for number in range(5)]
    distributions.debian(*(Pkg(name, "2-1") for name in names))
    distributions.image(DEBIAN, *(deb(name, "1", "1") for name in names))
    assert str(distributions.lacking(DEBIAN)) == (
        "5 pending security updates: package0 1-1 → 2-1, package1 1-1 → 2-1, "
        "package2 1-1 → 2-1, and 2 more"
    )


def test_of_amazon_linux_2_only_a_security_advisory_counts(distributions: Distributions) -> None:
    distributions.amazon(("security", "curl", "8.3.0-9.amzn2"), ("bugfix", "tar", "1.26-99.amzn2"))
    distributions.image(AL2, rpm("curl", "8.3.0", "1.amzn2"), rpm("tar", "1.26", "1.amzn2"))
    assert distributions.names(AL2) == ["curl 8.3.0-1.amzn2 → 8.3.0-9.amzn2"]


def test_an_update_of_a_kernel_is_one_of_its_series(distributions: Distributions) -> None:
    distributions.amazon(
        ("security", "kernel", "4.14.355-300.amzn2"), ("security", "kernel", "5.15.1-1.amzn2")
    )
    kernel = rpm("kernel", "5.10.227", "219.amzn2")
    distributions.image(AL2, kernel, held=["kernel-5.10.227-219.amzn2"])
    assert distributions.names(AL2) == []
    distributions.amazon(("security", "kernel", "5.10.230-1.amzn2"))
    # Held, but a bake takes the newest first.
    assert distributions.names(AL2) == ["kernel 5.10.227-219.amzn2 → 5.10.230-1.amzn2"]
    pinned = replace(AL2, kernel="kernel=5.10.227")
    assert distributions.names(pinned) == []


def test_a_held_kernel_of_debian_counts_unless_the_row_pins_it(
    distributions: Distributions,
) -> None:
    name = "linux-image-cloud-amd64"
    distributions.debian(Pkg(name, "6.1.147-1"))
    distributions.image(DEBIAN, deb(name, "6.1.140", "1"), held=[name])
    assert distributions.names(DEBIAN) == [f"{name} 6.1.140-1 → 6.1.147-1"]
    assert distributions.names(replace(DEBIAN, kernel=name)) == []


def test_what_the_row_pins_is_not_pending(distributions: Distributions) -> None:
    distributions.debian(Pkg("nvidia-driver", "535.999-1"), FIXED)
    driver = deb("nvidia-driver", "535.309.01", "1")
    distributions.image(DEBIAN, driver, OPENSSL, held=["nvidia-driver"])
    assert [name.split()[0] for name in distributions.names(DEBIAN)] == ["openssl"]


def test_what_the_images_own_bake_left_is_not_pending(distributions: Distributions) -> None:
    distributions.debian(FIXED)
    left = {"name": "openssl", "version": "3.0.17-1~deb12u3"}
    distributions.image(DEBIAN, OPENSSL, upgradable=[left])
    assert distributions.names(DEBIAN) == []
    distributions.debian(Pkg("openssl", "3.0.17-1~deb12u4"))
    assert distributions.names(DEBIAN) == ["openssl 3.0.17-1~deb12u2 → 3.0.17-1~deb12u4"]


def test_packages_of_another_processor_are_not_compared(distributions: Distributions) -> None:
    distributions.debian(FIXED)
    distributions.image(DEBIAN, deb("openssl", "3.0.17", "1~deb12u2", "i386"))
    assert distributions.names(DEBIAN) == []


def unknown(distributions: Distributions) -> str:
    lacking = distributions.lacking(DEBIAN)
    assert lacking is not None
    assert lacking.updates == ()
    return lacking.unknown


def test_a_repository_that_does_not_answer_is_named_and_nothing_is_guessed(
    distributions: Distributions,
) -> None:
    distributions.debian(FIXED)
    distributions.image(DEBIAN, OPENSSL)
    release = "/deb.debian.org/debian-security/dists/bookworm-security/InRelease"
    distributions.vendors.site.statuses[release] = 503
    assert unknown(distributions).startswith("debian-security (127.0.0.1:")
    assert unknown(distributions).endswith("): HTTP status 503")


def test_a_repository_that_its_vendor_did_not_sign_is_not_believed(
    distributions: Distributions,
) -> None:
    distributions.debian(FIXED)
    distributions.image(DEBIAN, OPENSSL)
    release = "/deb.debian.org/debian-security/dists/bookworm-security/InRelease"
    files = distributions.vendors.site.files
    files[release] = files[release].replace(b"Codename", b"codename")
    assert "no valid signature by a pinned key" in unknown(distributions)


def test_an_index_that_is_not_the_signed_one_is_not_believed(distributions: Distributions) -> None:
    distributions.debian(FIXED)
    distributions.image(DEBIAN, OPENSSL)
    path = "/deb.debian.org/debian-security/dists/bookworm-security/main/binary-amd64/Packages.gz"
    distributions.vendors.site.files[path] += b"x"
    assert "an index is not the one that it names" in unknown(distributions)


def test_a_mirror_that_stands_still_is_not_believed(distributions: Distributions) -> None:
    distributions.debian(FIXED, until=datetime(2026, 1, 2, tzinfo=timezone.utc))
    distributions.image(DEBIAN, OPENSSL)
    assert "valid until 2026-01-02 only" in unknown(distributions)
    later = datetime.now(timezone.utc) + timedelta(days=2)
    distributions.debian(FIXED, until=later)
    assert len(distributions.names(DEBIAN)) == 1


def test_a_repository_without_advisories_is_named(distributions: Distributions) -> None:
    distributions.amazon(listed=False)
    distributions.image(AL2)
    lacking = distributions.lacking(AL2)
    assert lacking is not None
    assert lacking.unknown.count("it lists no advisories") == 2


def test_advisories_that_change_while_they_are_read_are_not_believed(
    distributions: Distributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    distributions.amazon(("security", "curl", "8.3.0-9.amzn2"))
    distributions.image(AL2, rpm("curl", "8.3.0", "1.amzn2"))
    checked = security.ask_repository

    def and_then_it_changes(*words: Any, **named: Any) -> Index:
        index = checked(*words, **named)
        for path in [path for path in distributions.vendors.site.files if "repomd" in path]:
            distributions.vendors.site.files[path] += b"<!-- -->"
        return index

    monkeypatch.setattr(security, "ask_repository", and_then_it_changes)
    lacking = distributions.lacking(AL2)
    assert lacking is not None
    assert lacking.updates == ()
    assert lacking.unknown.count("its repomd.xml changed while it was read") == 2


def test_a_keyring_package_that_cannot_be_unpacked_is_named(distributions: Distributions) -> None:
    distributions.debian(FIXED)
    distributions.image(DEBIAN, OPENSSL)
    files = distributions.vendors.site.files
    (key,) = [path for path in files if path.endswith(".deb")]
    files[key] = b"!<arch>\nnothing"
    assert "the keyring package cannot be unpacked: " in unknown(distributions)


def test_a_mirror_list_without_an_address_that_can_be_asked_is_named(
    distributions: Distributions,
) -> None:
    distributions.amazon()
    distributions.image(AL2)
    distributions.vendors.site.files[MIRROR_LISTS[0]] = b"https://[cdn/\n"
    lacking = distributions.lacking(AL2)
    assert lacking is not None
    assert lacking.unknown.startswith("amzn2-core (")


def test_what_was_kept_of_an_index_and_is_damaged_is_read_anew(
    distributions: Distributions,
) -> None:
    distributions.debian(FIXED)
    distributions.image(DEBIAN, OPENSSL)
    before = distributions.names(DEBIAN)
    kept = list((security.cache_folder() / "files").glob("*.newest"))
    assert kept
    for damage in ("", "[]", '{"format": 1}', "null"):
        for file in kept:
            file.write_text(damage)
        assert distributions.names(DEBIAN) == before


@pytest.mark.parametrize("distro", ["debian98", "Debian-sid"])
def test_a_machine_whose_distribution_no_ami_is_built_on_has_no_security_repository(
    distro: str,
) -> None:
    # The lab's Debian and Ubuntu guests have the packages of this machine's distribution.
    assert ask_security([PackageArchive(distro, "x86_64")]) == {}


def test_an_image_whose_record_is_elsewhere_is_known_when_it_was_fetched(
    distributions: Distributions,
) -> None:
    distributions.debian(FIXED)
    assert f"no record of run {RUN}, which made {AMI}" in unknown(distributions)

    def bring(runs: Mapping[str, str]) -> None:
        assert runs == {DEBIAN.name: RUN}
        distributions.image(DEBIAN, OPENSSL)

    lacking = distributions.lacking(DEBIAN, bring)
    assert lacking is not None
    assert len(lacking.updates) == 1


@pytest.mark.parametrize(
    "recipe", [AL2023, replace(DEBIAN, package_snapshot="20261101T000000Z")], ids=["al2023", "pin"]
)
def test_what_no_bake_could_bring_is_not_asked_for(
    distributions: Distributions, recipe: Recipe
) -> None:
    distributions.image(recipe, OPENSSL)
    assert distributions.lacking(recipe) is None
    assert not distributions.vendors.site.asked


def test_what_has_not_changed_is_not_sent_again(distributions: Distributions) -> None:
    distributions.debian(FIXED)
    distributions.image(DEBIAN, OPENSSL)
    first = distributions.names(DEBIAN)
    sent = dict(distributions.vendors.site.sent)
    assert distributions.names(DEBIAN) == first
    assert dict(distributions.vendors.site.sent) == sent
