"""version-info → CycloneDX: the image's bill of materials, including unpackaged software."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
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
from kiln.base.vocabulary import read_time
from kiln.image.version_info import VersionInfo, load_version_info, read_version_info
from kiln.pipeline.record import Record

# What Inspector's scan takes: https://docs.aws.amazon.com/inspector/v2/APIReference/API_scan_ScanSbom.html
SCHEMA = SchemaVersion.V1_5
_PURL_TYPES = {"rpm": "rpm", "dpkg": "deb"}
# Endings of downloads that only serve to verify others: signatures and keys.
_NOT_SOFTWARE = (".sig", ".asc", ".pub", ".key", ".gpg", "gpgkey")


# Components that compile or copy their files and record no file name.
_FROM_SOURCE = {"gdrcopy", "aws-hw-monitor"}


def image_sbom(name: str) -> str:
    """Return the SBOM of a build by its name: see `kiln.pipeline.records.find_record`."""
    info, build = load_version_info(name)
    return cyclonedx(info, called=name) if build is None else build_sbom(build, info)


def build_sbom(build: Record, info: dict[str, Any]) -> str:
    """Return the SBOM of a build's image: the same text whenever it is asked for."""
    return cyclonedx(info, build.recipe, made=read_time(build.started))


def cyclonedx(
    data: dict[str, Any],
    recipe: Recipe | None = None,
    *,
    made: datetime | None = None,
    called: str = "the record",
) -> str:
    """Return the CycloneDX 1.5 JSON of an image.

    `data` is a version-info, named `called` in messages; `recipe` is that of the record. The SBOM
    lists every package with its package URL, GPU and network kernel modules, NVIDIA's .run
    installs, the EFA installer, what provisioners built from source, and every other download with
    its SHA-256. The same data gives the same serial number; `made` is the time of the bake,
    otherwise the SBOM has the time of day.
    """
    info = read_version_info(data, called)
    name = recipe.name if recipe else f"{info.os.id}-{info.os.version_id}"
    stack = ("driver", "kernel_module", "cuda", "flavor")
    about = [(key, getattr(recipe, key)) for key in stack] if recipe else []
    digest = hashlib.sha256(name.encode() + json.dumps(data, sort_keys=True).encode())
    bom = Bom(
        serial_number=uuid.UUID(bytes=digest.digest()[:16], version=4),
        components=[*_packages(info), *_modules(info), *_unpackaged(info), *_downloads(info)],
        metadata=BomMetaData(
            component=_component(
                ComponentType.OPERATING_SYSTEM,
                "image",
                name,
                info.os.version_id,
                [("kernel", info.kernel.boots), ("arch", info.arch), *about],
                description=info.os.name,
            ),
            timestamp=made,
        ),
    )
    bom.register_dependency(bom.metadata.component, bom.components)  # type: ignore[arg-type]
    return make_outputter(bom, OutputFormat.JSON, SCHEMA).output_as_string(indent=2) + "\n"


def _component(
    kind: ComponentType,
    ref: str,
    name: str,
    version: str | None,
    properties: Iterable[tuple[str, str | None]] = (),
    **more: Any,
) -> Component:
    """Return a component with those `kiln:` properties that have a value."""
    known = [Property(name=f"kiln:{key}", value=value) for key, value in properties if value]
    return Component(type=kind, bom_ref=ref, name=name, version=version, properties=known, **more)


def _packages(info: VersionInfo) -> Iterator[Component]:
    distro, release = info.os.id, info.os.version_id
    seen: Counter[str] = Counter()
    for package in info.packages:
        # The epoch is a qualifier for rpm, and part of the version for dpkg:
        # https://github.com/package-url/purl-spec/blob/ab4f7c9559e7d92af017a520c2ede7d1bdb76446/types/rpm-definition.json
        rpm = package.manager == "rpm"
        purl = PackageURL(
            type=_PURL_TYPES.get(package.manager, "generic"),
            namespace=distro,
            name=package.name,
            version=package.release_version if rpm else package.full_version,
            qualifiers={
                "arch": package.arch,
                "distro": f"{distro}-{release}",
                "epoch": package.epoch if rpm else "",
            },
        )
        ref = purl.to_string()
        # A package database may list an entry twice (gpg-pubkey): keep both.
        seen[ref] += 1
        number = str(seen[ref]) if seen[ref] > 1 else ""
        yield _component(
            ComponentType.LIBRARY,
            f"{ref}#{number}" if number else ref,
            package.name,
            package.full_version,
            [("occurrence", number)],
            purl=purl,
        )


def _modules(info: VersionInfo) -> Iterator[Component]:
    for module in info.modules:
        fields = ("srcversion", "vermagic", "kernel", "path")
        yield _component(
            ComponentType.DEVICE_DRIVER,
            # The path distinguishes the open from the proprietary kernel module.
            f"module:{module.kernel}/{module.path}",
            f"{module.name}.ko",
            module.version or module.srcversion,
            [(field, getattr(module, field)) for field in fields],
            licenses=[DisjunctiveLicense(name=module.license)] if module.license else [],
        )


def _unpackaged(info: VersionInfo) -> Iterator[Component]:
    """Yield software that provisioners installed without a package: installers, archives, builds.

    A company's own component comes with the files that it installed and their hashes.
    """
    packaged = {package.name for package in info.packages}
    kind, driver = ComponentType.APPLICATION, ComponentType.DEVICE_DRIVER
    for name, part in info.components.items():
        origin = part.runfile or part.archive or part.plugin
        properties: list[tuple[str, str | None]] = [("from", origin)]
        if not components.is_ours(name):
            below = tuple(f"{top}/" for top in part.files)
            properties = [
                ("file", f"{path} {text}")
                for path, text in (info.files or {}).items()
                if path in part.files or path.startswith(below)
            ]
        elif name in packaged or not part.version or not (origin or name in _FROM_SOURCE):
            continue
        yield _component(kind, f"component:{name}", name, part.version, properties)
    for run in info.runfiles:
        yield _component(driver, f"runfile:{run.name}", run.name, run.version)
    if info.efa:
        installed = [("installed", package) for package in info.efa.packages]
        yield _component(kind, "efa-installer", "aws-efa-installer", info.efa.installer, installed)


def _downloads(info: VersionInfo) -> Iterator[Component]:
    for entry in info.downloads:
        file = PurePosixPath(entry.url).name
        if file.endswith(_NOT_SOFTWARE):
            continue
        link = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(entry.url))
        yield _component(
            ComponentType.FILE,
            f"download:{entry.url}",
            file,
            None,
            hashes=[HashType(alg=HashAlgorithm.SHA_256, content=entry.sha256)],
            external_references=[link],
        )
