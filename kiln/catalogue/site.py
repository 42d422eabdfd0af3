"""The site's files in a folder, in S3, and served on this machine."""

from __future__ import annotations

import contextlib
import json
import shutil
import tempfile
from collections.abc import Callable, Iterable
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import TypeAdapter, ValidationError

from kiln.base import vocabulary
from kiln.base.errors import KilnError, named_by, operation_failed
from kiln.catalogue.pages import POLICY
from kiln.cloud import aws
from kiln.cloud.target import Target

# Names every file of the site: what else is there is not ours.
MANIFEST = "files.json"
_KINDS = {
    ".html": "text/html; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".json": "application/json",
    ".xml": "application/atom+xml; charset=utf-8",
    ".svg": "image/svg+xml",
}
# `frame-ancestors` is not for a page itself to say.
HEADERS = {
    "Content-Security-Policy": f"{POLICY}; frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-cache",
}

Files = Iterable[tuple[str, str]]


def write_site(files: Files, folder: Path) -> list[str]:
    """Write the site; what the one before it in the folder had, and this one has not, goes.

    A folder that holds something else is refused.
    """
    with named_by("--out"):
        folder.parent.mkdir(parents=True, exist_ok=True)
        if folder.exists() and any(folder.iterdir()) and not (folder / MANIFEST).is_file():
            raise KilnError(
                f"{folder} holds other files than a catalogue",
                hint="name an empty folder, or one that does not exist: --out DIR",
            )
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as made:
        fresh, old = Path(made, "site"), Path(made, "old")
        fresh.mkdir()
        names = []
        for name, text in files:
            path = fresh / name
            path.parent.mkdir(parents=True, exist_ok=True)
            # Half a surrogate pair, which JSON of an image may hold, is not a character of UTF-8.
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            names.append(name)
        (fresh / MANIFEST).write_text(json.dumps(sorted([*names, MANIFEST])) + "\n")
        # A reader sees the old site or the new one.
        if folder.is_dir():
            folder.rename(old)
        fresh.rename(folder)
        shutil.rmtree(old, ignore_errors=True)
    return [*names, MANIFEST]


def bucket_and_prefix(url: str, called: str = "--publish") -> tuple[str, str]:
    """The bucket and the prefix (empty, or with a `/` at its end) of s3://BUCKET/PREFIX."""
    bucket, _, path = url.removeprefix("s3://").partition("/")
    parts = [part for part in path.split("/") if part]
    plain = all(part.isascii() and part.isprintable() and part != ".." for part in parts)
    if not url.startswith("s3://") or not vocabulary.BUCKET.fits(bucket) or not plain:
        raise KilnError(
            f"{called} {vocabulary.shown(url)}: not a place in S3",
            hint=f"{called} s3://BUCKET/PREFIX",
        )
    return bucket, "".join(f"{part}/" for part in parts)


def publish_site(folder: Path, url: str, target: Target, say: Callable[[str], None]) -> None:
    """Copy a written site to S3: first what pages need, then the pages, the start page last. Then
    remove what the site before it had."""
    bucket, prefix = bucket_and_prefix(url)
    s3 = aws.s3(target)
    names = json.loads((folder / MANIFEST).read_text())
    before = _named_there(s3, bucket, prefix)
    with aws.explained(f"the catalogue could not be written to s3://{bucket}/{prefix}"):
        for name in sorted(names, key=lambda name: (name.endswith(".html"), name == "index.html")):
            s3.put_object(
                Bucket=bucket,
                Key=prefix + name,
                Body=(folder / name).read_bytes(),
                ContentType=_KINDS[PurePosixPath(name).suffix],
                CacheControl=HEADERS["Cache-Control"],
            )
        stale = sorted(before - set(names))
        for name in stale:
            s3.delete_object(Bucket=bucket, Key=prefix + name)
    gone = f", {len(stale)} of the site before removed" if stale else ""
    say(f"{len(names)} files are at s3://{bucket}/{prefix}{gone}")


def _named_there(s3: Any, bucket: str, prefix: str) -> set[str]:
    """The files that the site before named as its own; none where there is none."""
    from botocore.exceptions import ClientError

    with aws.explained(f"s3://{bucket}/{prefix}{MANIFEST} could not be read"):
        try:
            with s3.get_object(Bucket=bucket, Key=prefix + MANIFEST)["Body"] as body:
                names = TypeAdapter(list[str]).validate_json(body.read())
        except ClientError as error:
            # Without leave to list the bucket, a file that is not there is a refusal.
            if error.response["Error"].get("Code") in ("NoSuchKey", "404", "AccessDenied"):
                return set()
            raise
        except ValidationError:
            return set()
    # Only what a site can have: the manifest is a file that others may have written.
    paths = map(PurePosixPath, names)
    return {
        str(path)
        for path in paths
        if path.suffix in _KINDS and ".." not in path.parts and not path.is_absolute()
    }


class SiteHandler(SimpleHTTPRequestHandler):
    """Files of one folder, with `HEADERS`; says nothing on the terminal."""

    def end_headers(self) -> None:
        for name, value in HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name there
        return


def site_server(folder: Path, port: int) -> ThreadingHTTPServer:
    """A server for the folder on the loopback interface; port 0 takes a free one."""
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(SiteHandler, directory=str(folder)))
    except OSError as error:
        raise operation_failed(
            f"port {port} cannot be served: {error.strerror}", hint="choose another: --port 8001"
        ) from None


def serve_site(folder: Path, port: int, say: Callable[[str], None]) -> None:
    """Serve until Ctrl-C."""
    with site_server(folder, port) as server:
        say(f"http://127.0.0.1:{server.server_address[1]}/ (Ctrl-C ends it)")
        with contextlib.suppress(KeyboardInterrupt):
            server.serve_forever()
