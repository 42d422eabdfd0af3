"""`./invoke preflight`: what it finds when a vendor does not publish what a bake fetches.

The vendors are a local HTTPS server (vendor_site.py), which has everything that the row asks for;
each test takes something away.
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

from kiln.base.account import mirrored
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.cloud.target import Target
from kiln.components.package_repositories import Repository
from kiln.facts.tables import http_reason
from kiln.preflight.answers import summary_text
from kiln.preflight.ask import ask_parent, demand
from kiln.preflight.indexes import Fetcher, Index, NoAnswerError, State, ask_repository
from tests.unit.preflight.vendor_site import Pkg, Signer
from tests.unit.preflight.vendors import (
    AL2023,
    UBUNTU,
    Edit,
    Vendors,
    answers,
    at,
    row,
    without,
)

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("refused", [True, False], ids=["without-the-right", "without-credentials"])
def test_parent_is_not_asked_for_without_rights(
    monkeypatch: pytest.MonkeyPatch, refused: bool
) -> None:
    ssm = boto3.client("ssm", "us-east-1", aws_access_key_id="A", aws_secret_access_key="b")
    refusing = Stubber(ssm)
    refusing.add_client_error("get_parameter", "AccessDeniedException", "no")
    refusing.activate()
    monkeypatch.setattr("kiln.cloud.aws.ssm", lambda _: ssm)
    answer = ask_parent(row(UBUNTU), Target("a test", "us-east-1") if refused else None)
    assert answer.state is State.NOT_ASKED
    assert ("AccessDenied" if refused else "no AWS credentials") in answer.detail


def index_of_cuda(recipe: Recipe, folder: Path) -> Index:
    (cuda,) = [each for each in demand(recipe).repositories if each.name == "nvidia-cuda"]
    index = ask_repository(cuda, Fetcher(folder / "files"), folder / "keys")
    assert not index.usable
    return index


@pytest.mark.parametrize(
    ("ending", "words"),
    [
        ("/x86_64/InRelease", "no valid signature by a pinned key"),
        ("/3bf863cc.pub", "the key file holds {stranger}; pinned:"),
    ],
)
def test_signature_by_unpinned_key_is_refused(
    vendors: Vendors, tmp_path: Path, ending: str, words: str
) -> None:
    vendors.publish(row(UBUNTU))
    stranger = Signer(tmp_path / "stranger")
    (path,) = [path for path in vendors.site.files if path.endswith(ending)]
    is_key = ending.endswith(".pub")
    vendors.site.files[path] = stranger.key_file if is_key else stranger.clear_signed("Suite: /\n")
    stranger.close()
    detail = index_of_cuda(row(UBUNTU), tmp_path).detail
    assert words.format(stranger=stranger.fingerprint) in detail


def test_rpm_metadata_changed_after_signing_is_refused(vendors: Vendors, tmp_path: Path) -> None:
    vendors.publish(row(AL2023))
    path = next(p for p in vendors.site.files if "nvidia.com" in p and p.endswith("repomd.xml"))
    vendors.site.files[path] += b"<!-- changed -->"
    assert "BAD signature" in index_of_cuda(row(AL2023), tmp_path).detail


def test_file_with_another_hash_is_a_problem(vendors: Vendors) -> None:
    vendors.publish(row(UBUNTU))
    (answer,) = answers(UBUNTU, whole_files=True)
    assert "has sha256" in str(answer.problems())


def test_silent_host_is_no_problem_of_the_row(
    vendors: Vendors,
) -> None:
    vendors.publish(row(UBUNTU))
    silent = [path for path in vendors.site.files if path.startswith("/developer.download")]
    vendors.site.statuses |= dict.fromkeys(silent, 503)
    (answer,) = answers(UBUNTU)
    assert answer.problems() == []
    assert answer.state is State.SILENT
    assert set(answer.silent_hosts().values()) == {"HTTP status 503"}


def test_half_downloaded_file_is_not_kept(vendors: Vendors, tmp_path: Path) -> None:
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
    ],
)
def test_proxy_password_is_not_shown(
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
def test_invalid_mirrors_are_refused_without_password(
    text: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KILN_MIRRORS", text)
    with pytest.raises(KilnError, match="not pairs of URLs without user and password") as caught:
        mirrored("https://a.example/x")
    assert "S3cret" not in f"{caught.value.message} {caught.value.hint}"


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


def as_an_ordinary_user(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """dnf resolves for root alone; here it refuses whoever is not root of a new namespace."""
    users = Path("/proc/self/uid_map").read_text().split()
    refusing = folder / "dnf"
    refusing.write_text(
        '#!/bin/sh\nset -- $(cat /proc/self/uid_map) -- "$@"\n'
        f'[ "$1 $2 $3" != "{" ".join(users)}" ] || {{ echo "Error: no superuser" >&2; exit 1; }}\n'
        f'shift 4; exec {shutil.which("dnf")} "$@"\n'
    )
    refusing.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setattr("os.geteuid", lambda: 1000)


@pytest.mark.parametrize("name", [UBUNTU, AL2023])
def test_row_passes_when_everything_is_published(
    vendors: Vendors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
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
    as_an_ordinary_user(tmp_path, monkeypatch)
    assert answers(name)[0].state is State.PUBLISHED
    assert not [path for path in vendors.site.sent if path.endswith((".gz", ".pub"))]
    processes = [process.info["cmdline"] or [] for process in psutil.process_iter(["cmdline"])]
    assert [words for words in processes if str(tmp_path / "cache") in " ".join(words)] == []


# ------------------------------------------------------------------- first bakes

PRODUCTION = "ubuntu2404/production/base/x86_64"


def needs(name: str, *requires: str) -> Edit:
    return lambda _, packages: [
        replace(p, requires=requires) if p.name == name else p for p in packages
    ]


def in_the_distributions_archive(repository: Repository, packages: list[Pkg]) -> list[Pkg]:
    """Ubuntu's own fabric manager has the wanted name, and is for Ubuntu's own driver."""
    if repository.name != "ubuntu":
        return [p for p in packages if p.name != "nvidia-fabricmanager"]
    own = ("nvidia-open-580", "nvidia-open")
    return [*packages, Pkg("nvidia-fabricmanager", "580.178.04-0ubuntu1", conflicts=own)]


# What an index lacked, or may lack, when a row was first baked → the problems that are found.
# The numbers are those of the reading that found them.
FIRST_BAKES: dict[str, tuple[str, list[Edit], list[str]]] = {
    "nccl-for-another-cuda-driver-in-no-index-dcgm-in-parts": (
        PRODUCTION,
        [
            at("libnccl2", "2.30.4-1+cuda13.3"),
            at("nvidia-open", "595.71.05-1ubuntu1"),
            without("datacenter-gpu-manager-4-cuda13"),
        ],
        [
            "libnccl2=2.30.4@cuda13.2: not at 2.30.4 built for cuda13.2; the nearest published is "
            "2.30.4-1+cuda13.3",
            "nvidia-open=595.91.07: not at 595.91.07",
            "datacenter-gpu-manager-4-cuda13=4.6.0: no package of this name",
        ],
    ),
    "module-package-nowhere-no-dkms": (
        AL2023,
        [needs("nvidia-driver-cuda", "kernel-modules-extra"), without("dkms")],
        ["nothing provides kernel-modules-extra", "dkms: no package of this name"],
    ),
    "the-distributions-package-conflicts": (
        UBUNTU,
        [in_the_distributions_archive],
        ["dependencies do not resolve: nvidia-fabricmanager : Conflicts: nvidia-open-580"],
    ),
}


@pytest.mark.parametrize("case", FIRST_BAKES)
def test_preflight_finds_what_stopped_first_bakes(vendors: Vendors, case: str) -> None:
    line, edits, problems = FIRST_BAKES[case]
    vendors.publish(row(line), *edits)
    (answer,) = answers(line)
    listed = "\n".join(answer.problems())
    assert [problem for problem in problems if problem not in listed] == []
    assert answer.state is State.MISSING
