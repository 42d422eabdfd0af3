"""Vendors' repositories and files on a local HTTPS server, in the form that vendors publish.

Debian repositories have Packages.gz and a clear-signed InRelease, RPM repositories repomd.xml with
its signature, primary.xml.gz and modules.yaml. Their content is each test's.
"""

from __future__ import annotations

import contextlib
import gzip
import hashlib
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime, timezone
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from xml.sax.saxutils import quoteattr

from lab.vendors.mirror import ca


@dataclass(frozen=True)
class Pkg:
    """A package of an index: `requires`, `provides` and `conflicts` are names, `stream` is a DNF
    module stream."""

    name: str
    version: str
    requires: tuple[str, ...] = ()
    stream: str = ""
    provides: tuple[str, ...] = ()
    conflicts: tuple[str, ...] = ()


@dataclass
class Site:
    """What the server has, by path; `cut` are paths whose connection ends in the middle."""

    url: str = ""
    files: dict[str, bytes] = field(default_factory=dict)
    cut: set[str] = field(default_factory=set)
    statuses: dict[str, int] = field(default_factory=dict)
    sent: Counter[str] = field(default_factory=Counter)


class Signer:
    """A vendor with a signing key of its own."""

    def __init__(self, home: Path) -> None:
        self._home = home
        self.began = datetime.now(timezone.utc)
        # The same repository is published by many tests.
        self._signed: dict[tuple[str, bytes], bytes] = {}
        home.mkdir(mode=0o700)
        self._gpg("--passphrase", "", "--quick-gen-key", "vendor@example.com", "ed25519", "sign")
        listed = self._gpg("--with-colons", "--list-keys").decode()
        lines = [line.split(":") for line in listed.splitlines()]
        self.fingerprint = next(line[9] for line in lines if line[0] == "fpr")
        self.key_file = self._gpg("--armor", "--export")

    def clear_signed(self, text: str) -> bytes:
        return self._once("--clearsign", text.encode())

    def signature(self, data: bytes) -> bytes:
        return self._once("--detach-sign", data)

    def _once(self, kind: str, data: bytes) -> bytes:
        if (kind, data) not in self._signed:
            self._signed[kind, data] = self._gpg("--armor", kind, given=data)
        return self._signed[kind, data]

    def close(self) -> None:
        """No agent stays behind."""
        command = ["gpgconf", "--homedir", str(self._home), "--kill", "all"]
        subprocess.run(command, check=True)

    def _gpg(self, *words: str, given: bytes = b"") -> bytes:
        command = ["gpg", "--homedir", str(self._home), "--batch", "--quiet", *words]
        return subprocess.run(command, input=given, capture_output=True, check=True).stdout


def deb_repository(
    signer: Signer,
    arch: str,
    packages: list[Pkg],
    *,
    suite: str = "",
    parts: tuple[str, ...] = (),
) -> dict[str, bytes]:
    """Path → content of a Debian repository; a flat one without `suite`."""
    index = gzip.compress("\n".join(_stanza(package, arch) for package in packages).encode())
    empty = gzip.compress(b"")
    indexes = {"Packages.gz": index}
    if suite:
        indexes = {f"{part}/binary-{arch}/Packages.gz": empty for part in parts}
        indexes[f"{parts[0]}/binary-{arch}/Packages.gz"] = index
    # apt takes an index only if its unpacked form is listed too.
    listed = indexes | {p.removesuffix(".gz"): gzip.decompress(d) for p, d in indexes.items()}
    sums = [f" {hashlib.sha256(data).hexdigest()} {len(data)} {p}" for p, data in listed.items()]
    release = "\n".join(
        [
            f"Suite: {suite or '/'}",
            f"Codename: {suite or '/'}",
            f"Date: {signer.began:%a, %d %b %Y %H:%M:%S} UTC",
            f"Architectures: {arch}",
            f"Components: {' '.join(parts)}",
            "SHA256:",
            *sums,
            "",
        ]
    )
    folder = f"dists/{suite}/" if suite else ""
    named = {f"{folder}{path}": data for path, data in indexes.items()}
    return {**named, f"{folder}InRelease": signer.clear_signed(release)}


def _stanza(package: Pkg, arch: str) -> str:
    fields = {
        "Depends": package.requires,
        "Provides": package.provides,
        "Conflicts": package.conflicts,
    }
    lists = "".join(f"{name}: {', '.join(given)}\n" for name, given in fields.items() if given)
    return (
        f"Package: {package.name}\nVersion: {package.version}\nArchitecture: {arch}\n{lists}"
        f"Filename: ./{package.name}.deb\nSize: 1\nSHA256: {'0' * 64}\nMaintainer: v\n"
        "Description: p\n"
    )


def rpm_repository(signer: Signer | None, arch: str, packages: list[Pkg]) -> dict[str, bytes]:
    """Path → content of an RPM repository; metadata is signed if there is a signer."""
    primary = gzip.compress(_primary(packages, arch).encode())
    data = {"primary.xml.gz": primary}
    streams = sorted({package.stream for package in packages if package.stream})
    if streams:
        data["modules.yaml"] = "".join(_module(s, packages, arch) for s in streams).encode()
    entries = "".join(
        f'<data type="{name.split(".")[0]}"><checksum type="sha256">'
        f'{hashlib.sha256(content).hexdigest()}</checksum><location href="repodata/{name}"/>'
        f"<size>{len(content)}</size></data>"
        for name, content in data.items()
    )
    repomd = (
        '<?xml version="1.0" encoding="UTF-8"?><repomd xmlns="http://linux.duke.edu/metadata/repo">'
        f"<revision>1</revision>{entries}</repomd>"
    ).encode()
    files = {f"repodata/{name}": content for name, content in data.items()}
    files["repodata/repomd.xml"] = repomd
    if signer:
        files["repodata/repomd.xml.asc"] = signer.signature(repomd)
    return files


def _primary(packages: list[Pkg], arch: str) -> str:
    body = "".join(_rpm(package, arch) for package in packages)
    return (
        '<?xml version="1.0" encoding="UTF-8"?>'
        '<metadata xmlns="http://linux.duke.edu/metadata/common" '
        f'xmlns:rpm="http://linux.duke.edu/metadata/rpm" packages="{len(packages)}">'
        f"{body}</metadata>"
    )


def _rpm(package: Pkg, arch: str) -> str:
    version, _, release = package.version.partition("-")
    evr = f'epoch="0" ver={quoteattr(version)} rel={quoteattr(release or "1")}'
    requires, provides, conflicts = (
        "".join(f'<rpm:entry name="{name}"/>' for name in names)
        for names in (package.requires, package.provides, package.conflicts)
    )
    return (
        f'<package type="rpm"><name>{package.name}</name><arch>{arch}</arch><version {evr}/>'
        f'<checksum type="sha256" pkgid="YES">{hashlib.sha256(repr(package).encode()).hexdigest()}'
        "</checksum><summary>p</summary><description>p</description><packager/><url/>"
        '<time file="1" build="1"/><size package="1" installed="1" archive="1"/>'
        f'<location href="{package.name}-{version}.rpm"/><format><rpm:license>x</rpm:license>'
        "<rpm:vendor/><rpm:group>x</rpm:group><rpm:buildhost>x</rpm:buildhost><rpm:sourcerpm/>"
        '<rpm:header-range start="0" end="1"/><rpm:provides>'
        f'<rpm:entry name="{package.name}" flags="EQ" {evr}/>{provides}</rpm:provides>'
        f"<rpm:requires>{requires}</rpm:requires><rpm:conflicts>{conflicts}</rpm:conflicts>"
        "</format></package>"
    )


def _module(stream: str, packages: list[Pkg], arch: str) -> str:
    rpms = "".join(f"    - {p.name}-0:{p.version}.{arch}\n" for p in packages if p.stream == stream)
    name, _, branch = stream.partition(":")
    return (
        "---\ndocument: modulemd\nversion: 2\ndata:\n"
        f"  name: {name}\n  stream: {branch}\n  version: 1\n  context: '00000000'\n"
        f"  arch: {arch}\n  summary: m\n  description: m\n  license:\n    module: [MIT]\n"
        f"  artifacts:\n    rpms:\n{rpms}...\n"
    )


@contextlib.contextmanager
def served(folder: Path) -> Iterator[tuple[Site, Path]]:
    """A running HTTPS server, and the file with the certificate to trust."""
    site = Site()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            # In the connection's own thread: a slow client must not make others wait.
            self.request = context.wrap_socket(self.request, server_side=True)
            super().setup()

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def _answer(self, *, with_body: bool) -> None:
            data = site.files.get(self.path)
            status = site.statuses.get(self.path, 200 if data is not None else 404)
            content = (data or b"") if status == 200 else b""
            tag = f'"{hashlib.sha256(content).hexdigest()}"'
            if status == 200 and self.headers.get("If-None-Match") == tag:
                status, content = 304, b""
            self.send_response(status)
            self.send_header("ETag", tag)
            if status != 304:
                self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body and status == 200:
                site.sent[self.path] += 1
                half = self.path in site.cut
                self.wfile.write(content[: len(content) // 2] if half else content)
                self.close_connection = half

        def log_message(self, *_: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        # Preflight asks for many files at once.
        request_queue_size = 128

        def handle_error(self, request: object, client_address: object) -> None:
            """A client that disconnects does not fail the test."""

    context = ca.server_context(["localhost"], folder)
    server = Server(("127.0.0.1", 0), Handler)
    site.url = f"https://localhost:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield site, ca.ensure(folder).certificate
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
