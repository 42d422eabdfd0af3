"""Downloads, their signatures and mirrors, with the real curl and gpg."""

from __future__ import annotations

import json
import shutil
import socket
import struct
import subprocess
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import ClassVar

import pytest

from kiln.base.paths import PROVISIONERS
from tests.unit.provisioners.machine import Machine, plant, serve

pytestmark = pytest.mark.slow

X = {"X_URL": "https://vendor/x.run"}


def test_download_with_another_hash_names_both(machine: Machine) -> None:
    seen = serve(machine, "something else")
    error = machine.stops("kiln_download X", **X, X_SHA256="ab" * 32)
    assert f"expected {'ab' * 32}, got {seen}" in error
    assert not (machine.etc / "downloads.json").exists()


def test_download_without_known_hash_is_recorded(machine: Machine) -> None:
    seen = serve(machine, "new")
    done = machine.works("kiln_download X", **X, X_SHA256="")
    assert Path(done.stdout.strip()).read_text() == "new"
    (entry,) = json.loads((machine.etc / "downloads.json").read_text())
    assert entry == {
        "url": X["X_URL"], "sha256": seen, "sha256_was": "first-seen", "component": "sample",
    }  # fmt: skip


def test_two_downloads_of_one_name_are_two_files(machine: Machine) -> None:
    machine.command("curl", 'while (($# > 2)); do shift; done; echo "$2" >"$1"')
    urls = {"A_URL": "https://vendor/tool.tgz", "B_URL": "https://other/tool.tgz"}
    done = machine.works("a=$(kiln_download A) && b=$(kiln_download B) && cat $a $b", **urls)
    assert done.stdout.splitlines() == list(urls.values())


def test_locked_file_is_fetched_once(machine: Machine) -> None:
    seen = serve(machine, "same")
    machine.works("kiln_download X", **X, X_SHA256=seen)
    machine.command("curl", "exit 22")
    machine.works("kiln_download X", **X, X_SHA256=seen)


class Unsteady(BaseHTTPRequestHandler):
    """Serves `CONTENT`; the first request of a path fails as the path says."""

    CONTENT = b"x" * 500_000 + b"end"
    seen: ClassVar[list[tuple[str, str]]] = []

    def do_GET(self) -> None:
        first = self.path not in [path for path, _ in self.seen]
        begin = int(self.headers.get("Range", "bytes=0-")[6:-1])
        self.seen.append((self.path, self.headers.get("Range", "")))
        failure = self.path if first else ""
        if failure == "/503" or self.path == "/404":
            self.send_error(int(self.path[1:]))
            return
        if failure == "/reset":
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
            return
        if self.path == "/no-range":
            begin = 0
        self.send_response(206 if begin else 200)
        if begin:
            size = len(self.CONTENT)
            self.send_header("Content-Range", f"bytes {begin}-{size - 1}/{size}")
        self.send_header("Content-Length", str(len(self.CONTENT) - begin))
        self.end_headers()
        # So little that curl's average is below its limit at once.
        cut = {"/truncated": 100_000, "/stalled": 10, "/no-range": 100_000}.get(failure)
        self.wfile.write(self.CONTENT[begin:cut])
        self.wfile.flush()
        if failure == "/stalled":
            # Until curl leaves.
            self.connection.recv(1)

    def log_message(self, *words: object) -> None:
        """Print nothing."""


@pytest.fixture
def unsteady() -> Iterator[str]:
    Unsteady.seen.clear()
    server = ThreadingHTTPServer(("127.0.0.1", 0), Unsteady)
    threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


def fetch(machine: Machine, url: str) -> subprocess.CompletedProcess[str]:
    """Download with the real curl, without TLS and with seconds for its minutes."""
    machine.command(
        "curl",
        "for word; do case $word in =https) word='=http' ;; 60) word=1 ;; esac\n"
        f'words+=("$word"); done; exec {shutil.which("curl")} "${{words[@]}}"',
    )
    return machine.bash("kiln_download X", X_URL=url, X_SHA256="")


@pytest.mark.parametrize(
    ("failure", "second"),
    [
        ("reset", ""),
        ("truncated", "bytes=100000-"),
        ("stalled", "bytes=10-"),
        ("503", ""),
        ("no-range", None),
    ],
)
def test_interrupted_download_goes_on(
    machine: Machine, unsteady: str, failure: str, second: str | None
) -> None:
    done = fetch(machine, f"{unsteady}/{failure}")
    assert done.returncode == 0, done.stderr
    assert Path(done.stdout.strip()).read_bytes() == Unsteady.CONTENT
    if second is not None:
        assert Unsteady.seen == [(f"/{failure}", ""), (f"/{failure}", second)]


def test_refused_connection_is_tried_six_times(machine: Machine) -> None:
    done = fetch(machine, "http://127.0.0.1:9/x")
    assert done.returncode == 1
    assert "cannot download http://127.0.0.1:9/x" in done.stderr
    assert done.stderr.count("the download failed, trying again in") == 5


def test_missing_file_is_not_tried_again(machine: Machine, unsteady: str) -> None:
    assert fetch(machine, f"{unsteady}/404").returncode == 1
    assert len(Unsteady.seen) == 1


# ------------------------------------------------------------------- signatures

# What is wrong → what is given instead; a part of the error.
FORGED = {
    "file": ({"file": "other"}, "other is not what"),
    "key": ({"key": "other"}, "expected {fingerprint}, got"),
    "no-fingerprint": ({"fingerprint": None}, "no fingerprint given"),
    "second-key": ({"key": "both"}, "kiln: sample: ERROR: "),
}


def verification(values: dict[str, str]) -> str:
    words = (f"'{values[n]}'" for n in ("file", "signature", "key", "fingerprint"))
    return f"kiln_check_signature {' '.join(words)}"


def test_signature_by_the_known_key_passes(machine: Machine, signed: dict[str, str]) -> None:
    machine.works(verification(signed))


@pytest.mark.parametrize("wrong", FORGED)
def test_forged_signature_stops(
    machine: Machine, signed: dict[str, str], tmp_path: Path, wrong: str
) -> None:
    both = tmp_path / "both"
    both.write_text(Path(signed["key"]).read_text() + Path(signed["other"]).read_text())
    change, error = FORGED[wrong]
    known = {**signed, "both": str(both)}
    values = {**signed, **{name: known[of] if of else "" for name, of in change.items()}}
    assert error.format(**signed) in machine.stops(verification(values))


# ------------------------------------------------------------------- mirrors

VENDOR = "https://developer.download.nvidia.com"
MIRROR = "https://mirror.example.com/nvidia"
SOURCES = {
    "etc/apt/sources.list": "deb http://deb.debian.org/debian bookworm main\n",
    "etc/apt/sources.list.d/nvidia-cuda.list": f"deb [signed-by=/k] {VENDOR}/compute/cuda/ /\n",
    "etc/apt/sources.list.d/debian.sources": "URIs: mirror+file:///etc/apt/mirrors/debian.list\n",
    "etc/apt/mirrors/debian.list": "https://cdn-aws.deb.debian.org/debian\n",
    "etc/yum.repos.d/nvidia-cuda.repo": f"[x]\nbaseurl={VENDOR}/compute/cuda\n",
}


def test_package_sources_name_mirror_during_the_bake(machine: Machine) -> None:
    image = machine.root / "image"
    plant(image, SOURCES)
    mirrors = (
        f"{VENDOR}={MIRROR} http://deb.debian.org=http://mirror.example.com/debian-org"
        " https://cdn-aws.deb.debian.org=http://mirror.example.com/debian-aws"
    )
    machine.command("apt-get", f"cat {image}/etc/apt/*/*.list {image}/etc/apt/*.list")
    said = machine.works("kiln_pm update", KILN_MIRRORS=mirrors).stderr
    assert f"{MIRROR}/compute/cuda/" in said
    assert "http://mirror.example.com/debian-org/debian bookworm" in said
    assert "http://mirror.example.com/debian-aws/debian\n" in said
    assert VENDOR not in said
    machine.works("kiln_forget_mirrors", KILN_MIRRORS=mirrors)
    assert {name: (image / name).read_text() for name in SOURCES} == SOURCES
    assert "\nkiln_forget_mirrors\n" in (PROVISIONERS / "cleanup.sh").read_text()


def test_unreachable_vendor_repositories_are_skipped(machine: Machine) -> None:
    image = machine.root / "image/etc/yum.repos.d"
    ours = "[nvidia-cuda]\nname=x\nskip_if_unavailable=0\n"
    epel = "[epel]\nenabled=1\n\n[epel-source]\nenabled=0\n"
    amazon = "[amzn2-core]\nskip_if_unavailable=0\n"
    plant(image, {"nvidia-cuda.repo": ours, "epel.repo": epel, "amzn2-core.repo": amazon})
    machine.works("kiln_skip_unavailable")
    skip = "skip_if_unavailable=1"
    assert {path.name: path.read_text() for path in image.iterdir()} == {
        "nvidia-cuda.repo": f"[nvidia-cuda]\n{skip}\nname=x\n",
        "epel.repo": f"[epel]\n{skip}\nenabled=1\n\n[epel-source]\n{skip}\nenabled=0\n",
        "amzn2-core.repo": amazon,
    }
    assert "\nkiln_skip_unavailable\n" in (PROVISIONERS / "cleanup.sh").read_text()


@pytest.mark.parametrize("content", ["x", "y"])
def test_mirrors_file_must_have_the_vendors_hash(machine: Machine, content: str) -> None:
    machine.command("curl", f'echo "${{@: -1}}" >&2; echo {content} >"${{@: -2:1}}"')
    done = machine.bash(
        "kiln_download X",
        X_URL=f"{VENDOR}/a/b.run",
        X_SHA256="73cb3858a687a8494ca3323053016282f3dad39d42cf62ca4e79dda2aac7d9ac",
        KILN_MIRRORS=f"https://developer.download=https://no.example {VENDOR}={MIRROR}",
    )
    assert f"\n{MIRROR}/a/b.run\n" in done.stderr
    assert done.returncode == (0 if content == "x" else 1)
    if content == "x":
        (entry,) = json.loads((machine.etc / "downloads.json").read_text())
        assert (entry["url"], entry["sha256_was"]) == (f"{VENDOR}/a/b.run", "locked")
