"""version-info → CycloneDX: the image's bill of materials, including unpackaged software."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Iterator
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any

from cyclonedx.model import (
    ExternalReference,
    ExternalReferenceType,
    HashAlgorithm,
    HashType,
    Property,
    XsUri,
)
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.model.license import DisjunctiveLicense
from cyclonedx.output import make_outputter
from cyclonedx.schema import OutputFormat, SchemaVersion
from packageurl import PackageURL

from kiln import components
from kiln.base.recipe import Recipe
from kiln.base.times import read_time
from kiln.image import version_info
from kiln.image.version_info import Package
from kiln.pipeline.record import Record

# What Inspector's scan takes: https://docs.aws.amazon.com/inspector/v2/APIReference/API_scan_ScanSbom.html
SCHEMA = SchemaVersion.V1_5
_PURL_TYPES = {"rpm": "rpm", "dpkg": "deb"}
# Endings of downloads that only serve to verify others: signatures and keys.
_NOT_SOFTWARE = (".sig", ".asc", ".pub", ".key", ".gpg", "gpgkey")
# What rpm prints for what an entry of its database lacks, such as the architecture of a key.
_NO_VALUE = "(none)"


def of_name(name: str) -> str:
    """`sbom` of a build by its name: see `kiln.pipeline.records.find_record` for valid names.

    Raises KilnError (exit status 2) if there is no such build, or if it holds no version-info.
    """
    info, build = version_info.load_version_info(name)
    with version_info.reading(name):
        return cyclonedx(info) if build is None else of_build(build, info)


def of_build(build: Record, info: dict[str, Any]) -> str:
    """The bill of a build's image: the same text whenever it is asked for.

    Raises KilnError (exit status 2) if `info` is no version-info.
    """
    return cyclonedx(info, build.recipe, made=read_time(build.started))


def cyclonedx(
    record: dict[str, Any],
    recipe: Recipe | dict[str, Any] | None = None,
    *,
    made: datetime | None = None,
) -> str:
    """The CycloneDX 1.5 JSON of an image.

    `record` is a build record or the data of version-info.json, `recipe` the recipe or its data
    from the record. The bill lists every package with its package URL, GPU and network kernel
    modules, NVIDIA's .run installs, the EFA installer, what provisioners built from source, and
    every other download with its SHA-256. The same record gives the same serial number; `made` is
    the time of the bake, otherwise the bill has the time of day.

    Raises KilnError (exit status 2) if the record holds no version-info.
    """
    info = version_info.of(record)
    about = recipe.as_json() if isinstance(recipe, Recipe) else recipe or {}
    name = about.get("name") or f"{info['os']['id']}-{info['os']['version_id']}"
    parts = (_packages, _modules, _unpackaged, _of_overlays, _downloads)
    bom = Bom(
        serial_number=_serial(info, name),
        components=[component for part in parts for component in part(info)],
        metadata=BomMetaData(
            component=Component(
                bom_ref="image",
                name=name,
                type=ComponentType.OPERATING_SYSTEM,
                version=info["os"]["version_id"],
                description=info["os"]["name"],
                properties=_about(info, about),
            ),
            timestamp=made,
        ),
    )
    bom.register_dependency(bom.metadata.component, bom.components)  # type: ignore[arg-type]
    return make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2) + "\n"


def _serial(info: dict[str, Any], name: str) -> uuid.UUID:
    digest = hashlib.sha256(name.encode() + json.dumps(info, sort_keys=True).encode())
    return uuid.UUID(bytes=digest.digest()[:16], version=4)


def _about(info: dict[str, Any], recipe: dict[str, Any]) -> list[Property]:
    facts = {"kernel": info.get("kernel", {}).get("boots"), "arch": info.get("arch")}
    facts |= {key: recipe.get(key) for key in ("driver", "kernel_module", "cuda", "flavor")}
    return [Property(name=f"kiln:{key}", value=value) for key, value in facts.items() if value]


def _packages(info: dict[str, Any]) -> Iterator[Component]:
    distro = info["os"]
    seen: dict[str, int] = {}
    for package in version_info.installed_packages(info):
        epoch, version = _split_epoch(package)
        purl = PackageURL(
            type=_PURL_TYPES.get(package.manager, "generic"),
            namespace=distro["id"],
            name=package.name,
            version=version,
            qualifiers={
                "arch": package.arch if package.arch != _NO_VALUE else "",
                "distro": f"{distro['id']}-{distro['version_id']}",
                "epoch": epoch,
            },
        )
        text = purl.to_string()
        # A package database may list an entry twice (gpg-pubkey): keep both.
        seen[text] = seen.get(text, 0) + 1
        yield Component(
            bom_ref=text if seen[text] == 1 else f"{text}#{seen[text]}",
            name=package.name,
            version=package.version,
            type=ComponentType.LIBRARY,
            purl=purl,
            properties=[Property(name="kiln:occurrence", value=str(seen[text]))]
            if seen[text] > 1
            else None,
        )


def _split_epoch(package: Package) -> tuple[str, str]:
    """Epoch and version of a package URL: rpm's epoch is a qualifier, dpkg's part of the version.

    https://github.com/package-url/purl-spec/blob/ab4f7c9559e7d92af017a520c2ede7d1bdb76446/types/rpm-definition.json
    """
    epoch, colon, version = package.version.partition(":")
    if package.manager == "rpm" and colon:
        return epoch, version
    return "", package.version


def _modules(info: dict[str, Any]) -> Iterator[Component]:
    for module in info.get("modules", ()):
        details = {key: module.get(key) for key in ("srcversion", "vermagic", "kernel", "path")}
        licenses = [DisjunctiveLicense(name=module["license"])] if module.get("license") else []
        yield Component(
            # The path distinguishes the open from the proprietary kernel module.
            bom_ref=f"module:{module['kernel']}/{module['path']}",
            name=f"{module['name']}.ko",
            version=module.get("version") or module["srcversion"],
            type=ComponentType.DEVICE_DRIVER,
            licenses=licenses,
            properties=[Property(name=f"kiln:{k}", value=v) for k, v in details.items() if v],
        )


def _unpackaged(info: dict[str, Any]) -> Iterator[Component]:
    """Software that provisioners installed without a package: installers, archives, builds."""
    packaged = {package.name for package in version_info.installed_packages(info)}
    for name, record in info.get("components", {}).items():
        version = record.get("version")
        origin = record.get("runfile") or record.get("archive") or record.get("plugin")
        if not components.is_ours(name):
            continue
        if not version or not (origin or name in _FROM_SOURCE) or name in packaged:
            continue
        yield Component(
            bom_ref=f"component:{name}",
            name=name,
            version=version,
            type=ComponentType.APPLICATION,
            properties=[Property(name="kiln:from", value=origin)] if origin else None,
        )
    for run in info.get("runfiles", ()):
        yield Component(
            bom_ref=f"runfile:{run['name']}",
            name=run["name"],
            version=run["version"],
            type=ComponentType.DEVICE_DRIVER,
        )
    if info.get("efa"):
        yield Component(
            bom_ref="efa-installer",
            name="aws-efa-installer",
            version=info["efa"]["installer"],
            type=ComponentType.APPLICATION,
            properties=[
                Property(name="kiln:installed", value=package)
                for package in info["efa"]["packages"]
            ],
        )


def _of_overlays(info: dict[str, Any]) -> Iterator[Component]:
    """A company's own components, each with the files that it installed and their hashes."""
    for name, record in info.get("components", {}).items():
        if components.is_ours(name):
            continue
        tops = tuple(record.get("files", ()))
        installed = {
            path: text
            for path, text in info.get("files", {}).items()
            if path in tops or path.startswith(tuple(f"{top}/" for top in tops))
        }
        yield Component(
            bom_ref=f"component:{name}",
            name=name,
            version=record.get("version"),
            type=ComponentType.APPLICATION,
            properties=[
                Property(name="kiln:file", value=f"{path} {text}")
                for path, text in installed.items()
            ],
        )


# Components that compile or copy their files and record no file name.
_FROM_SOURCE = {"gdrcopy", "aws-hw-monitor"}


def _downloads(info: dict[str, Any]) -> Iterator[Component]:
    for entry in info.get("downloads", ()):
        file = PurePosixPath(entry["url"]).name
        if file.endswith(_NOT_SOFTWARE):
            continue
        yield Component(
            bom_ref=f"download:{entry['url']}",
            name=file,
            type=ComponentType.FILE,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=entry["sha256"])],
            external_references=[
                ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(entry["url"]))
            ],
        )
