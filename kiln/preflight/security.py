"""The security updates that distributions publish: their repositories are asked, and verified as
preflight verifies them.

What counts: of apt, what the distribution's security suite has; of rpm, what an advisory of the
type `security` in the repository's updateinfo.xml names (`security` of archives.yaml).
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import lzma
import tempfile
import zlib
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timezone
from email.utils import parsedate_to_datetime
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

from pydantic import TypeAdapter

from kiln import facts
from kiln.base.input_file import read_bytes
from kiln.base.package_versions import Manager, is_newer
from kiln.base.times import utc_now
from kiln.base.vocabulary import shown
from kiln.cloud.target import PackageArchive
from kiln.components.package_repositories import Repository, security_of
from kiln.preflight.ask import cache_folder
from kiln.preflight.fetch import Fetched, Fetcher, NoAnswerError, NotThereError
from kiln.preflight.indexes import Index, ask_repository
from kiln.preflight.keyrings import NotSignedError

# Requests that wait for the network, not for this machine.
_AT_ONCE = 16
_BEGIN, _END = "-----BEGIN PGP SIGNED MESSAGE-----", "-----BEGIN PGP SIGNATURE-----"
# Bytes of an index, unpacked. Ubuntu's largest has about a hundred million.
_LARGEST = 1 << 30
_PIECE = 1 << 20
# gz first: it takes a fifth of xz's time, and is half as large again.
_UNPACKERS: dict[str, Callable[[Path], contextlib.AbstractContextManager[io.BufferedIOBase]]] = {
    ".gz": gzip.open,
    ".xz": lzma.open,
    "": lambda path: path.open("rb"),
}
# Of the kept versions; a change of it makes them anew.
_FORMAT = 1


@dataclass(frozen=True)
class SecurityUpdates:
    """Of each package the newest version that fixes something, for one processor.

    `versions` has them by the package's name. `silent` says of each repository that could not be
    asked who did not answer, and why: of its packages nothing is known.
    """

    manager: Manager
    versions: Mapping[str, tuple[str, ...]]
    silent: tuple[str, ...]


class _UnusableError(Exception):
    """A repository's answer is not what it signs, or is not readable; why."""


def ask_security(archives: Iterable[PackageArchive]) -> dict[PackageArchive, SecurityUpdates]:
    """Ask the security repositories of each archive once; an archive of which none is known is left
    out.

    A file that has not changed is not sent again. Raises KilnError (exit status 2) for bad
    KILN_MIRRORS.
    """
    wanted = {
        archive: security_of(archive.distro, archive.arch) for archive in dict.fromkeys(archives)
    }
    pairs = [(archive, entry) for archive, entries in wanted.items() for entry in entries]
    if not pairs:
        return {}
    with tempfile.TemporaryDirectory(prefix="kiln-security-") as folder:
        ask = partial(_ask, folder=Path(folder))
        with ThreadPoolExecutor(_AT_ONCE) as pool:
            answers = list(pool.map(lambda pair: ask(*pair), pairs))
    updates = {}
    for archive, entries in wanted.items():
        own = [answer for (of, _), answer in zip(pairs, answers, strict=True) if of == archive]
        if entries:
            manager: Manager = "dpkg" if entries[0].kind == "apt" else "rpm"
            versions = [answer for answer in own if isinstance(answer, dict)]
            silent = tuple(answer for answer in own if isinstance(answer, str))
            updates[archive] = SecurityUpdates(manager, _joined(versions), silent)
    return updates


Versions = dict[str, tuple[str, ...]]
_VERSIONS = TypeAdapter(Versions)


def _ask(archive: PackageArchive, repository: Repository, folder: Path) -> Versions | str:
    """The versions of a repository, or who did not answer and why."""
    try:
        fetcher = Fetcher(cache_folder() / "files", dict(archive.mirrors))
        index = ask_repository(repository, fetcher, folder)
        if not index.usable:
            return f"{repository.name} ({index.host or repository.url}): {index.detail}"
        names = facts.table("downloads")["processors"][archive.arch]
        if repository.kind == "apt":
            return _of_apt(index, fetcher, names["deb"])
        return _of_rpm(index, fetcher, names["uname"])
    except NoAnswerError as error:
        return f"{repository.name} ({error.host}): {error.reason}"
    # A ValueError is an address in a mirror list or in an index that is not one.
    except (NotThereError, NotSignedError, _UnusableError, OSError, ValueError) as error:
        return f"{repository.name} ({repository.url}): {error}"


def _joined(answers: Iterable[Versions]) -> Versions:
    joined: Versions = {}
    for answer in answers:
        for name, versions in answer.items():
            joined[name] = (*joined.get(name, ()), *versions)
    return joined


def _of_apt(index: Index, fetcher: Fetcher, arch: str) -> Versions:
    repository = index.repository
    answers = []
    for suite, url in zip(repository.suites, repository.release_files(), strict=True):
        release = _checked(index, fetcher, url)
        sums = _checksums(release.path.read_text(encoding="utf-8", errors="replace"))
        for component in repository.components:
            listed = f"{component}/binary-{arch}/Packages"
            ending = next((end for end in _UNPACKERS if f"{listed}{end}" in sums), None)
            if ending is None:
                continue  # A suite need not have every component.
            path = f"dists/{suite}/{listed}{ending}"
            fetched = fetcher.get(f"{repository.url}/{path}")
            _require_checksum(fetched, sums[f"{listed}{ending}"])
            listing = _Listing("dpkg", arch, ending, _of_packages)
            answers.append(_newest(fetched, listing))
    return _joined(answers)


def _checked(index: Index, fetcher: Fetcher, url: str) -> Fetched:
    """A file that names indexes, as `ask_repository` has checked it."""
    fetched = fetcher.get(url)
    if (url, fetched.sha256) not in index.checksums:
        name = url.rpartition("/")[2]
        raise _UnusableError(f"its {name} changed while it was read; ask again")
    return fetched


def _checksums(release: str) -> dict[str, str]:
    """Path → SHA-256 of a verified InRelease: only what stands inside the signature counts.

    Raises _UnusableError for one whose time has passed, as apt does: an old mirror has no updates.
    """
    if not release.startswith(_BEGIN) or release.count(_BEGIN) != 1:
        raise _UnusableError("its InRelease is not one signed text")
    lines = release.partition(_END)[0].splitlines()
    until = next((line for line in lines if line.startswith("Valid-Until:")), None)
    if until is not None:
        try:
            end = parsedate_to_datetime(until.partition(":")[2].strip())
        except (ValueError, TypeError, OverflowError):
            raise _UnusableError(f"its InRelease has {shown(until)}, which is not a time") from None
        end = end if end.tzinfo else end.replace(tzinfo=timezone.utc)
        if end < utc_now():
            raise _UnusableError(f"its InRelease was valid until {end:%Y-%m-%d} only")
    sums, inside = {}, False
    for line in lines:
        if not line.startswith(" "):
            inside = line == "SHA256:"
        elif inside and len(line.split()) == 3:
            checksum, _, path = line.split()
            sums[path] = checksum
    return sums


def _require_checksum(fetched: Fetched, expected: str) -> None:
    if fetched.sha256 != expected:
        raise _UnusableError("an index is not the one that it names; it may be changing: ask again")


def _of_packages(text: bytes, arch: str) -> Iterable[tuple[str, str]]:
    """Name and version of each package of the processor in a Packages file."""
    # Of a hundred million bytes three lines in each stanza count: the others are not looked at.
    for lines in text.split(b"\n\n"):
        stanza = b"\n" + lines
        name = _field(stanza, b"Package")
        if name and _field(stanza, b"Architecture") in (arch, "all"):
            yield name, _field(stanza, b"Version")


def _field(stanza: bytes, name: bytes) -> str:
    """The value of a field of a stanza, whose lines begin with a newline; "" without it."""
    start = stanza.find(b"\n" + name + b": ")
    if start < 0:
        return ""
    start += len(name) + 3
    end = stanza.find(b"\n", start)
    return stanza[start : end if end >= 0 else None].decode("utf-8", "replace").strip()


_REPO = "{http://linux.duke.edu/metadata/repo}"


def _of_rpm(index: Index, fetcher: Fetcher, arch: str) -> Versions:
    base = index.repository.url
    metadata = _checked(index, fetcher, f"{base}/repodata/repomd.xml")
    entry = _parsed(metadata.path.read_bytes()).find(f"{_REPO}data[@type='updateinfo']")
    location = entry.find(f"{_REPO}location") if entry is not None else None
    checksum = entry.find(f"{_REPO}checksum[@type='sha256']") if entry is not None else None
    if location is None or checksum is None or not checksum.text:
        raise _UnusableError("it lists no advisories (updateinfo)")
    href = location.get("href", "")
    ending = next(end for end in _UNPACKERS if href.endswith(end))
    fetched = fetcher.get(f"{base}/{href}")
    _require_checksum(fetched, checksum.text.strip())
    return _newest(fetched, _Listing("rpm", arch, ending, _of_advisories))


def _of_advisories(text: bytes, arch: str) -> Iterable[tuple[str, str]]:
    """Name and version of each package of the processor that a security advisory names."""
    for update in _parsed(text).iter("update"):
        if update.get("type") != "security":
            continue
        for package in update.iterfind("pkglist/collection/package"):
            if package.get("arch") in (arch, "noarch"):
                epoch = package.get("epoch") or "0"
                full = f"{epoch}:{package.get('version')}-{package.get('release')}"
                yield package.get("name", ""), full.removeprefix("0:")


class _WithoutDocumentType(ElementTree.TreeBuilder):
    """No such file has a document type; what a definition of entities unpacks to has no limit.

    The parser says that there is one, in whatever encoding.
    """

    def doctype(self, name: str, public_id: str, system: str) -> None:
        """See ElementTree.TreeBuilder."""
        raise _UnusableError("its metadata has a document type")


def _parsed(text: bytes) -> ElementTree.Element:
    parser = ElementTree.XMLParser(target=_WithoutDocumentType())  # noqa: S314 - without entities
    try:
        return ElementTree.fromstring(text, parser)  # noqa: S314
    except (ElementTree.ParseError, LookupError, ValueError) as error:
        raise _UnusableError(f"its metadata is not readable: {error}") from None


@dataclass(frozen=True)
class _Listing:
    """How an index is read: its packer's ending, and what yields names and versions of a text."""

    manager: Manager
    arch: str
    ending: str
    read: Callable[[bytes, str], Iterable[tuple[str, str]]]


def _newest(fetched: Fetched, listing: _Listing) -> Versions:
    """The newest version of each package of an index; kept beside it, for reading takes long.

    Several kernels have one name: of those the newest of each series counts.
    """
    kept = fetched.path.with_suffix(".newest")
    same = {"format": _FORMAT, "sha256": fetched.sha256, "arch": listing.arch}
    known_versions = _kept(kept, same)
    if known_versions is not None:
        return known_versions
    text = _unpacked(fetched.path, listing.ending)
    newest: dict[str, dict[str, str]] = {}
    for name, version in listing.read(text, listing.arch):
        by_series = newest.setdefault(name, {})
        series = series_of(name, version)
        if series not in by_series or is_newer(listing.manager, version, by_series[series]):
            by_series[series] = version
    versions = {name: tuple(by_series.values()) for name, by_series in newest.items()}
    # Several processes may ask: each writes a file of its own.
    with tempfile.NamedTemporaryFile(
        "w", dir=kept.parent, delete=False, encoding="utf-8"
    ) as making:
        making.write(json.dumps({**same, "versions": versions}))
    Path(making.name).replace(kept)
    return versions


def _kept(path: Path, same: Mapping[str, object]) -> Versions | None:
    """The versions that were kept of an index; None if they are of another one, or damaged."""
    try:
        data = json.loads(read_bytes(path))
        if {key: data[key] for key in same} != same:
            return None
        return _VERSIONS.validate_python(data["versions"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _unpacked(path: Path, ending: str) -> bytes:
    text = bytearray()
    try:
        with _UNPACKERS[ending](path) as packed:
            while piece := packed.read(_PIECE):
                text += piece
                if len(text) > _LARGEST:
                    raise _UnusableError(f"an index unpacks to more than {_LARGEST >> 20} MiB")
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise _UnusableError(f"an index cannot be unpacked: {error}") from None
    return bytes(text)


def series_of(name: str, version: str) -> str:
    """Amazon Linux has kernels of several series under one name, each in a repository of its own;
    an update is one within a series: 5.10 of kernel-5.10.227. "" for any other package."""
    if not name.startswith("kernel"):
        return ""
    return ".".join(version.rpartition(":")[2].split(".")[:2])
