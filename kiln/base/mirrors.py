"""Mirrors of vendors' hosts, for what this machine itself fetches (`KILN_MIRRORS`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from urllib.parse import urlsplit

from kiln.base.errors import KilnError
from kiln.base.vocabulary import masked

MIRRORS = "KILN_MIRRORS"


def mirrors() -> dict[str, str]:
    """Map the beginning of a vendor's URL to that of its mirror, as KILN_MIRRORS has them."""
    pairs = {}
    for word in os.environ.get(MIRRORS, "").split():
        vendor, equals, mirror = word.partition("=")
        if not equals or not all(_is_url(url) for url in (vendor, mirror)):
            raise KilnError(
                f"{MIRRORS}: {masked(repr(word))} is not a pair of URLs without user and password",
                hint="expected: https://vendor.example=https://mirror.example/vendor, several "
                "separated by spaces",
            )
        pairs[vendor.rstrip("/")] = mirror.rstrip("/")
    return pairs


def mirrored(url: str, pairs: Mapping[str, str]) -> str:
    """Return the URL at the mirror with the longest beginning that fits, or the URL itself."""
    fitting = [vendor for vendor in pairs if url == vendor or url.startswith(f"{vendor}/")]
    if not fitting:
        return url
    vendor = max(fitting, key=len)
    return pairs[vendor] + url.removeprefix(vendor)


def _is_url(text: str) -> bool:
    parts = urlsplit(text)
    # Messages name the URL that was asked, and no message may have a password.
    return parts.scheme in {"http", "https"} and bool(parts.netloc) and masked(text) == text
