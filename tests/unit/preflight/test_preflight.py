"""`./invoke preflight`: what it finds when a vendor does not publish what a bake fetches.

The vendors are a local HTTPS server (vendor_site.py). By default it has everything that the row
asks for; each test takes something away, as one of the first bakes would have met it.
"""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from pathlib import Path

import boto3
import psutil
import pytest
from botocore.stub import Stubber
from preflight_vendors import AL2023, UBUNTU, Vendors, answers, row, signer, vendors
from vendor_site import Pkg, Signer

from kiln import facts
from kiln.base.account import mirrored
from kiln.base.errors import KilnError
from kiln.cloud.target import Target
from kiln.components.package_repositories import Repository
from kiln.facts.tables import http_reason
from kiln.matrix import load
from kiln.preflight import indexes as indexes_module
from kiln.preflight.answers import summary_text
from kiln.preflight.ask import demand
from kiln.preflight.indexes import Fetcher, NoAnswerError, State

# The fixtures that tests name.
__all__ = ["signer", "vendors"]


@pytest.mark.parametrize("refused", [True, False], ids=["without-the-right", "without-credentials"])
def test_a_row_whose_parent_cannot_be_asked_for_still_passes(
    vendors: Vendors, monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    ssm = boto3.client("ssm", "us-east-1", aws_access_key_id="A", aws_secret_access_key="b")
    refusing = Stubber(ssm)
    refusing.add_client_error("get_parameter", "AccessDeniedException", "no")
    refusing.activate()
    monkeypatch.setattr("kiln.cloud.aws.ssm", lambda _: ssm)
    vendors.publish(row(UBUNTU))
    target = Target("a test", "us-east-1") if refused else None
    (answer,) = answers(UBUNTU, target=target)
    assert answer.state is State.PUBLISHED
    assert answer.parent.state is State.NOT_ASKED
    text = summary_text([answer])
    assert answer.cells()[1] == "not asked"
    why = "GetParameter answered AccessDeniedException" if refused else "no AWS credentials"
    assert why in text


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("/x86_64/InRelease", "no valid signature by a pinned key"),
        ("/3bf863cc.pub", "the key file holds {stranger}; pinned:"),
    ],
)
def test_what_a_key_that_is_not_pinned_signed_is_refused(
    vendors: Vendors, tmp_path: Path, ending: str, words: str
) -> None:
    vendors.publish(row(UBUNTU))
    stranger = Signer(tmp_path / "stranger")
    (path,) = [path for path in vendors.site.files if path.endswith(ending)]
    is_key = ending.endswith(".pub")
    vendors.site.files[path] = stranger.key_file if is_key else stranger.clear_signed("Suite: /\n")
    stranger.close()
    (answer,) = answers(UBUNTU)
    assert "repository nvidia-cuda" in str(answer.problems())
    assert words.format(stranger=stranger.fingerprint) in str(answer.problems())


def test_rpm_metadata_that_was_changed_after_it_was_signed_is_refused(
    vendors: Vendors, tmp_path: Path
) -> None:
    recipe = row(AL2023)
    vendors.publish(recipe)
    path = next(p for p in vendors.site.files if "nvidia.com" in p and p.endswith("repomd.xml"))
    vendors.site.files[path] += b"<!-- changed -->"
    (cuda,) = [entry for entry in demand(recipe).repositories if entry.name == "nvidia-cuda"]
    index = indexes_module.ask_repository(cuda, Fetcher(tmp_path / "files"), tmp_path / "keys")
    assert not index.usable
    assert "BAD signature" in index.detail


def test_ordinary_user_gets_dnf_dependencies_resolved(
    vendors: Vendors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """dnf resolves for root alone; here it refuses whoever is not root of a new namespace."""
    users = Path("/proc/self/uid_map").read_text().split()
    refusing = tmp_path / "dnf"
    refusing.write_text(
        '#!/bin/sh\nset -- $(cat /proc/self/uid_map) -- "$@"\n'
        f'[ "$1 $2 $3" != "{" ".join(users)}" ] || {{ echo "Error: no superuser" >&2; exit 1; }}\n'
        f'shift 4; exec {shutil.which("dnf")} "$@"\n'
    )
    refusing.chmod(0o755)
    vendors.publish(row(AL2023))
    monkeypatch.setenv("PATH", f"{tmp_path}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    (answer,) = answers(AL2023)
    assert answer.problems() == []
    assert {resolved.state for resolved in answer.resolved} == {State.PUBLISHED}


def test_a_file_with_other_content_than_the_known_hash_is_named(vendors: Vendors) -> None:
    vendors.publish(row(UBUNTU))
    (answer,) = answers(UBUNTU, whole_files=True)
    assert "has sha256" in str(answer.problems())
    assert "expected" in str(answer.problems())


def test_a_host_that_does_not_answer_does_not_prove_that_something_is_missing(
    vendors: Vendors,
) -> None:
    vendors.publish(row(UBUNTU))
    silent = [path for path in vendors.site.files if path.startswith("/developer.download")]
    vendors.site.statuses |= dict.fromkeys(silent, 503)
    (answer,) = answers(UBUNTU)
    assert answer.problems() == []
    assert answer.state is State.SILENT
    assert set(answer.silent_hosts().values()) == {"HTTP status 503"}
    assert "1: not every host answered" in summary_text([answer])


def test_a_half_downloaded_file_is_never_taken_for_whole(vendors: Vendors, tmp_path: Path) -> None:
    site = vendors.site
    site.files["/file"] = b"0123456789" * 1000
    site.cut.add("/file")
    fetcher = Fetcher(tmp_path / "files")
    for fetch in (fetcher.get, fetcher.sha256):
        with pytest.raises(NoAnswerError, match="the connection ended before the file did"):
            fetch(f"{site.url}/file")
    site.cut.clear()
    assert len(fetcher.get(f"{site.url}/file")) == fetcher.sha256(f"{site.url}/file")[1] == 10_000


@pytest.mark.parametrize(
    ("proxy", "words"),
    [
        ("http://127.0.0.1:9", "the proxy refuses"),
        ("http://me:S3cret@proxy.example:port", "the URL of the proxy"),
        ("http://me:S3cret/@127.0.0.1:9", "the URL of the proxy"),
    ],
)
def test_the_proxy_is_used_and_its_password_not_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, proxy: str, words: str
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", proxy)
    with pytest.raises(NoAnswerError, match=words) as caught:
        Fetcher(tmp_path / "files").size("https://vendor.example/file")
    assert "S3cret" not in str(caught.value)
    assert "S3cret" not in http_reason(OSError(f"another error of {proxy}"))


@pytest.mark.parametrize(
    "text", ["https://mirror.example", "https://a.example=https://me:S3cret@mirror.example"]
)
def test_wrong_mirrors_are_refused_without_their_password(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_MIRRORS", text)
    with pytest.raises(KilnError, match="not pairs of URLs without user and password") as caught:
        mirrored("https://a.example/x")
    assert "S3cret" not in f"{caught.value.message} {caught.value.hint}"


def test_every_row_asks_the_distributions_own_repositories() -> None:
    for recipe in load.load_recipes():
        asked = demand(recipe)
        vendor = {entry["name"] for entry in facts.table("archives")["vendors"].values()}
        own = [entry for entry in asked.repositories if entry.name not in vendor]
        assert own, recipe.name
        assert asked.packages, recipe.name


DRIVER = {UBUNTU: "nvidia-open-580", AL2023: "kmod-nvidia-open-dkms"}


def with_a_driver_in_parts(repository: Repository, packages: list[Pkg]) -> list[Pkg]:
    """NVIDIA's driver depends on a package of its repository and on one of the distribution."""
    if repository.name in {"ubuntu", "amazonlinux"}:
        return [*packages, Pkg("libc6", "2.39-1")]
    if repository.name != "nvidia-cuda":
        return packages
    needs = ("libc6", "nvidia-kmod")
    return [
        *(replace(p, requires=needs) if p.name in DRIVER.values() else p for p in packages),
        Pkg("nvidia-kmod-parts", "580.178.04-1", provides=("nvidia-kmod",)),
        Pkg("nvidia-kmod-other", "580.178.04-1"),
    ]


@pytest.mark.parametrize("name", [UBUNTU, AL2023])
def test_a_row_whose_vendors_have_everything_passes(
    vendors: Vendors, tmp_path: Path, name: str
) -> None:
    vendors.publish(row(name), with_a_driver_in_parts)
    (answer,) = answers(name)
    assert answer.problems() == []
    assert answer.silent_hosts() == {}
    assert answer.state is State.PUBLISHED
    asked_for = {answered.package.partition("=")[0] for answered in answer.packages}
    assert answer.resolved[0].packages == len(asked_for | {"libc6", "nvidia-kmod-parts"})
    assert "1 of 1 rows: everything is published" in summary_text([answer])
    # What has not changed is not sent again, and no process stays behind.
    vendors.site.sent.clear()
    assert answers(name)[0].state is State.PUBLISHED
    assert not [path for path in vendors.site.sent if path.endswith((".gz", ".pub"))]
    processes = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert [words for words in processes if str(tmp_path / "cache") in " ".join(words)] == []
