"""What a distribution's mirror, or somebody in its place, answers when it is asked for updates.

Amazon Linux 2 signs packages, but not what lists them: whatever stands there is anybody's text.
"""

from __future__ import annotations

import gzip
import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from preflight_vendors import signer, vendors
from test_pending import (
    AL2,
    DEBIAN,
    FIXED,
    MIRROR_LISTS,
    OPENSSL,
    Distributions,
    deb,
    distributions,
    rpm,
)
from vendor_site import Pkg

from kiln.base.package_versions import order
from kiln.preflight import fetch, security

# The fixtures that tests name.
__all__ = ["distributions", "signer", "vendors"]

BASE = "/cdn.amazonlinux.com/mirror0/repodata"
PACKED = f"{BASE}/updateinfo.xml.gz"
ADVISORY = ("security", "curl", "8.3.0-9.amzn2")
CURL = rpm("curl", "8.3.0", "1.amzn2")


def serve(distributions: Distributions, packed: bytes) -> None:
    """Have the mirror serve other advisories, with their checksum."""
    distributions.amazon(ADVISORY)
    distributions.image(AL2, CURL)
    files = distributions.vendors.site.files
    path = next(name for name in files if name.startswith(BASE) and "updateinfo" in name)
    before = hashlib.sha256(files[path]).hexdigest().encode()
    files[path] = packed
    listing = f"{BASE}/repomd.xml"
    assert before in files[listing]
    files[listing] = files[listing].replace(before, hashlib.sha256(packed).hexdigest().encode())


def unknown(distributions: Distributions) -> str:
    """Why it is not known what the image lacks."""
    lacking = distributions.lacking(AL2)
    assert lacking is not None
    assert lacking.updates == ()
    return lacking.unknown


def utf_16(text: str) -> bytes:
    return text.encode("utf-16")


def utf_8(text: str) -> bytes:
    return text.encode()


DOCUMENT_TYPE = (
    '<?xml version="1.0"?><!DOCTYPE u [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;">]>'
    '<updates><update type="security"><pkglist><collection><package arch="x86_64" name="curl" '
    'version="9" release="&b;"/></collection></pkglist></update></updates>'
)


@pytest.mark.parametrize("encode", [utf_8, utf_16], ids=["utf-8", "utf-16"])
def test_advisories_with_a_document_type_are_not_read(
    distributions: Distributions, encode: Callable[[str], bytes]
) -> None:
    serve(distributions, gzip.compress(encode(DOCUMENT_TYPE)))
    assert "its metadata has a document type" in unknown(distributions)


CUT = gzip.compress(b"<updates></updates>" * 100)


@pytest.mark.parametrize(
    "packed",
    [
        CUT[:20],
        CUT[:12] + b"\xff" * 8 + CUT[20:],
        b"",
        b"<updates></updates>",
        gzip.compress(b"<updates>"),
        gzip.compress(b"\xff\xfe\x00<"),
        gzip.compress(b'<?xml version="1.0" encoding="no-such"?><updates/>'),
    ],
    ids=["cut", "damaged", "empty", "not packed", "open", "not text", "encoding"],
)
def test_damaged_advisories_are_named_and_nothing_is_guessed(
    distributions: Distributions, packed: bytes
) -> None:
    serve(distributions, packed)
    assert "amzn2-core" in unknown(distributions)


def test_advisories_that_unpack_to_gigabytes_are_refused(
    distributions: Distributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(security, "_LARGEST", 1 << 20)
    serve(distributions, gzip.compress(b" " * (8 << 20)))
    assert "an index unpacks to more than 1 MiB" in unknown(distributions)


@pytest.mark.parametrize(
    "version", ["", "9" * 5000, f"{'9' * 5000}:1-1", "٣:1-1", "-", "~^", "1:" * 100, "\x1b[31m9-1"]
)
def test_a_version_of_any_text_has_an_order(version: str) -> None:
    for other in ("1.0-1", version):
        for manager in ("dpkg", "rpm"):
            forth, back = order(manager, version, other), order(manager, other, version)
            assert (forth > 0, forth < 0) == (back < 0, back > 0)


def test_a_package_with_an_epoch_of_thousands_of_digits_is_compared(
    distributions: Distributions,
) -> None:
    distributions.debian(Pkg("openssl", f"{'9' * 5000}:1-1"))
    distributions.image(DEBIAN, OPENSSL)
    (name,) = distributions.names(DEBIAN)
    assert name.startswith("openssl 3.0.17-1~deb12u2 → 999")


def test_an_advisory_without_a_version_makes_nothing_due(distributions: Distributions) -> None:
    text = (
        '<updates><update type="security"><pkglist><collection><package arch="x86_64" name="curl"/>'
        '<package arch="x86_64"/></collection></pkglist></update></updates>'
    )
    serve(distributions, gzip.compress(text.encode()))
    lacking = distributions.lacking(AL2)
    assert lacking is not None
    assert lacking.updates == ()


@pytest.mark.parametrize(
    "kept",
    [
        "[]",
        "1",
        "[" * 100_000,
        '{"versions": []}',
        '{"versions": {"openssl": 5}}',
        '{"versions": {"openssl": [5]}}',
        '{"versions": {"openssl": "9"}}',
    ],
)
def test_a_damaged_list_that_this_machine_kept_is_made_anew(
    distributions: Distributions, kept: str
) -> None:
    distributions.debian(FIXED)
    distributions.image(DEBIAN, OPENSSL)
    expected = distributions.names(DEBIAN)
    folder = security.cache_folder() / "files"
    (path,) = [path for path in folder.glob("*.newest") if "openssl" in path.read_text()]
    data = json.loads(path.read_text())
    if kept.startswith("{"):
        kept = json.dumps({**data, **json.loads(kept)})
    path.write_text(kept)
    assert distributions.names(DEBIAN) == expected


@pytest.mark.parametrize("until", ["", "never", "Thu, 99 Foo 9999 99:99:99 UTC"])
def test_a_release_file_whose_end_cannot_be_read_is_not_believed(
    distributions: Distributions, until: str
) -> None:
    distributions.debian(FIXED)
    distributions.image(DEBIAN, OPENSSL)
    site = distributions.vendors.site
    path = "/deb.debian.org/debian-security/dists/bookworm-security/InRelease"
    text = site.files[path].decode().split("\n\n", 1)[1].partition("-----BEGIN PGP SIG")[0]
    site.files[path] = distributions.signer.clear_signed(f"Valid-Until: {until}\n{text}")
    lacking = distributions.lacking(DEBIAN)
    assert lacking is not None
    assert lacking.updates == ()
    assert "Valid-Until" in lacking.unknown


@pytest.mark.parametrize(
    "line", ["https://[::1", "https://x y", "https://\x1b[31m/", "file:///etc"]
)
def test_a_mirror_list_that_names_no_address_is_named(
    distributions: Distributions, line: str
) -> None:
    serve(distributions, gzip.compress(b"<updates/>"))
    distributions.vendors.site.files[MIRROR_LISTS[0]] = line.encode()
    assert "amzn2-core" in unknown(distributions)


def test_an_answer_that_does_not_end_is_cut(
    distributions: Distributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_LARGEST", 1 << 20)
    serve(distributions, b"x" * (3 << 20))
    assert "it sends more than 1 MiB" in unknown(distributions)
    assert not list((security.cache_folder() / "files").glob("tmp*"))


def test_a_list_of_repositories_that_changes_between_two_questions_is_not_believed(
    distributions: Distributions, monkeypatch: pytest.MonkeyPatch
) -> None:
    serve(distributions, gzip.compress(b"<updates/>"))
    ask = security.ask_repository

    def then_changed(*given: Any) -> Any:
        index = ask(*given)
        distributions.vendors.site.files[f"{BASE}/repomd.xml"] += b" "
        return index

    monkeypatch.setattr(security, "ask_repository", then_changed)
    assert "its repomd.xml changed while it was read" in unknown(distributions)


def test_a_packages_list_that_is_not_text_makes_nothing_due(
    distributions: Distributions, tmp_path: Path
) -> None:
    distributions.debian(Pkg("openssl\x1b[31m", "9-1"), Pkg("", ""))
    distributions.image(DEBIAN, deb("openssl", "3", "1"))
    assert distributions.names(DEBIAN) == []
