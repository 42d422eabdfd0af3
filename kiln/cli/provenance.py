"""Tasks about where a published AMI comes from."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from invoke import Context

from kiln.base.errors import KilnError
from kiln.cli.flags import JSON, PLACE
from kiln.cli.front import show, task

if TYPE_CHECKING:
    from kiln.publish.provenance import Provenance

_HELP = {
    "ami": "the AMI, in the region of --region: ami-0123456789abcdef0",
    "key": "the signer's public key (default: that of `publish.sign`): --key key.pem",
    **PLACE,
    **JSON,
}


@task(
    name="provenance",
    default=True,
    positional=["action", "ami"],
    help={"action": "verify", **_HELP},
)
def provenance_(
    c: Context,
    action: str,
    ami: str,
    key: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """The same as provenance.verify, by words: ./invoke provenance verify ami-…"""
    if action != "verify":
        raise KilnError(f"provenance {action}: not known", hint="./invoke provenance verify ami-…")
    return _verified(ami, key, target, region, as_json=json)


@task(name="verify", positional=["ami"], help=_HELP)
def verify_statement(
    c: Context,
    ami: str,
    key: str | None = None,
    target: str = "auto",
    region: str | None = None,
    json: bool = False,
) -> int:
    """Who built a published AMI from what, or exactly what does not match its statement."""
    return _verified(ami, key, target, region, as_json=json)


def _verified(ami: str, key: str | None, target: str, region: str | None, *, as_json: bool) -> int:
    from pathlib import Path

    from kiln.cli import targets
    from kiln.cloud.images import find_image
    from kiln.matrix import flags
    from kiln.publish import lines, provenance
    from kiln.publish.regions import answering

    flags.ami(ami)
    trusted = provenance.key_in_file(Path(key)) if key else None
    place = answering(targets.choose(target, region))
    if trusted is None:
        image = find_image(place, ami)
        settings = lines.line_settings().get(str(image.line)) if image else None
        if settings is None or settings.sign is None:
            raise KilnError(
                f"cannot verify {ami}: no signing key is configured",
                hint="name the public key with --key FILE, or set `publish.sign` in amis.yaml",
            )
        trusted = provenance.public_key(settings.sign, place)
    statement = provenance.verify_image(place, ami, trusted)
    show(
        {**asdict(statement), "matches": not statement.wrong},
        as_json=as_json,
        text=lambda data: _text(statement),
    )
    return 1 if statement.wrong else 0


def _text(found: Provenance) -> str:
    match = f"{found.ami_id} in {found.region} is what its signed statement says"
    lines = [f"{name:13} {value}" for name, value in found.said.items()]
    return "\n".join([*lines, *([f"wrong         {why}" for why in found.wrong] or [match])])
