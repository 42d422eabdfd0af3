"""What is known about GPUs, drivers, toolkits, distributions: `knowledge/*.yaml`, typed.

Every fact keeps its `source`, which a stranger can open, and `confirmed: false` where there is
none: what rests on such a fact may warn, never refuse. `unsure` names single fields of a confirmed
entry that nobody confirmed.
"""

from __future__ import annotations

from calendar import monthrange
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any

import yaml

from kiln.base import versions
from kiln.base.errors import KilnError, did_you_mean, nearest
from kiln.base.paths import KNOWLEDGE


class _Loader(yaml.CSafeLoader):
    """Versions and dates are text: 580.10 must not become 580.1."""


_Loader.yaml_implicit_resolvers = {
    letter: [(tag, regex) for tag, regex in resolvers if not tag.endswith((":float", ":timestamp"))]
    for letter, resolvers in yaml.CSafeLoader.yaml_implicit_resolvers.items()
}


@cache
def table(name: str) -> dict[str, Any]:
    """The plain data of `knowledge/<name>.yaml`. Versions are text, never numbers."""
    text = (KNOWLEDGE / f"{name}.yaml").read_text(encoding="utf-8")
    data: dict[str, Any] = yaml.load(text, Loader=_Loader)  # noqa: S506 (a safe loader)
    return data


def confirmed(entry: Mapping[str, Any]) -> bool:
    """Can somebody else look this entry of `knowledge/` up? Only `confirmed: false` says no."""
    return bool(entry.get("confirmed", True))


def full_source(source: str, names: Mapping[str, str]) -> str:
    """A `source` with the short names of its file's `sources` written out."""
    return "; ".join(names.get(part, part) for part in source.split("; "))


@dataclass(frozen=True)
class InstanceType:
    """An EC2 instance type with NVIDIA GPUs.

    `gpu` is the key in instances.yaml (and in mig.yaml), `product` the name `nvidia-smi` shows.
    `gpu_count` counts whole GPUs: 0 on fractional types (g6f, gr6f). `gpu_arch` is the GPU's
    architecture, `arch` the processor's. `nvswitch` means that CUDA needs a fabric manager,
    `nvlsm` that this needs NVLSM beside it. `open_modules` is supported, required or
    unsupported; `prefers` is the module to load where both are on the image, with `module_options`
    as its parameters. `application_clocks` are the highest ones, memory and graphics in MHz; with
    `auto_boost` the GPU varies them by itself unless told not to. `unsure` names fields no public
    material confirmed.
    """

    type: str
    gpu: str
    ec2_name: str
    product: str
    gpu_count: int
    gpu_memory_mib: int
    gpu_arch: str
    compute_capability: str
    pci_device_ids: tuple[str, ...]
    arch: str
    vcpus: int
    memory_mib: int
    network_cards: int
    efa_interfaces: int
    nvswitch: bool
    nvlsm: bool
    imex: bool
    mig: bool
    open_modules: str
    prefers: str
    module_options: tuple[str, ...]
    application_clocks: tuple[int, int] | None
    auto_boost: bool
    grid_driver: bool
    fractional: bool
    offered: bool
    confirmed: bool
    unsure: tuple[str, ...]
    source: str

    @property
    def family(self) -> str:
        """The part before the dot: p5.48xlarge → p5."""
        return self.type.split(".", maxsplit=1)[0]

    @property
    def efa(self) -> bool:
        """Has it an EFA interface?"""
        return self.efa_interfaces > 0


@cache
def instances() -> dict[str, InstanceType]:
    """All GPU instance types, by name, in the order of the file."""
    data = table("instances")
    return {
        entry["type"]: _instance_type(entry, data["gpus"][entry["gpu"]], data["default_source"])
        for entry in data["types"]
    }


def _instance_type(entry: dict[str, Any], gpu: dict[str, Any], source: str) -> InstanceType:
    clocks = gpu.get("application_clocks")
    return InstanceType(
        type=entry["type"],
        gpu=entry["gpu"],
        ec2_name=gpu["ec2_name"],
        product=gpu["product"],
        gpu_count=entry["count"],
        gpu_memory_mib=entry.get("gpu_memory_mib", gpu["memory_mib"]),
        gpu_arch=gpu["arch"],
        compute_capability=gpu["compute_capability"],
        pci_device_ids=tuple(gpu["pci_device_ids"]),
        arch=entry["arch"],
        vcpus=entry["vcpus"],
        memory_mib=entry["memory_mib"],
        network_cards=entry["network_cards"],
        efa_interfaces=entry["efa"],
        nvswitch=entry.get("nvswitch", False),
        nvlsm=entry.get("nvlsm", False),
        imex=entry.get("imex", False),
        mig=gpu["mig"],
        open_modules=gpu["open_modules"],
        prefers=_preferred(gpu),
        module_options=tuple(gpu.get("prefers", {}).get("options", ())),
        application_clocks=(clocks[0], clocks[1]) if clocks else None,
        auto_boost=gpu.get("auto_boost", False),
        grid_driver=entry.get("grid_driver", False),
        fractional=entry.get("fractional", False),
        offered=entry.get("offered", True),
        confirmed=confirmed(entry),
        unsure=tuple(entry.get("unsure", ())),
        source=entry.get("source", source),
    )


def nvswitches() -> dict[str, tuple[str, int]]:
    """GPU architecture → (PCI device id, count on a baseboard) of the NVSwitches beside it, for
    the generations that are PCI devices."""
    return {
        arch: (entry["pci_device_id"], entry["count"])
        for arch, entry in table("instances")["nvswitches"].items()
    }


def _preferred(gpu: dict[str, Any]) -> str:
    only = {"required": "open", "unsupported": "proprietary"}.get(gpu["open_modules"])
    return only or str(gpu.get("prefers", {}).get("module", "open"))


def instance(name: str) -> InstanceType:
    """The GPU instance type of that name.

    Raises KilnError (exit code 2) when it is none, with the nearest one that is.
    """
    known = instances()
    if name in known:
        return known[name]
    family = name.split(".", maxsplit=1)[0]
    sizes = [other for other in known if known[other].family == family]
    best = nearest(name, sizes or known)
    hint = f"did you mean {best}?" if best else "all are in kiln/facts/knowledge/instances.yaml"
    if sizes:
        hint = f"{family} has: {', '.join(sizes)}"
    raise KilnError(f"{name} is not a GPU instance type that AMI Kiln knows", hint=hint)


@dataclass(frozen=True)
class Branch:
    """A branch of NVIDIA's data-centre driver. `end_of_life` is its last day with fixes."""

    name: str
    kind: str | None
    end_of_life: date | None
    native_cuda: str
    modules: tuple[str, ...]
    versions: tuple[str, ...]
    betas: tuple[str, ...]
    unsure: tuple[str, ...]

    @property
    def newest(self) -> str | None:
        """The branch's newest known release."""
        return versions.newest(self.versions)

    def ended(self, today: date) -> bool:
        """Has support ended before `today`?"""
        return self.end_of_life is not None and self.end_of_life < today


@cache
def branches() -> dict[str, Branch]:
    """All driver branches, oldest first. Drivers that came inside a CUDA toolkit count too."""
    bundled = [release["driver"] for release in table("cuda")["releases"].values()]
    return {
        name: Branch(
            name=name,
            kind=entry["kind"],
            end_of_life=last_day(entry["end_of_life"]),
            native_cuda=entry["native_cuda"],
            modules=tuple(entry["modules"]),
            versions=tuple(
                dict.fromkeys(
                    [*entry["versions"], *(v for v in bundled if v and versions.major(v) == name)]
                )
            ),
            betas=tuple(entry.get("betas", ())),
            unsure=tuple(entry.get("unsure", ())),
        )
        for name, entry in table("drivers")["branches"].items()
    }


def branch(driver: str | None) -> Branch | None:
    """The branch of a driver version, or None when that branch is not known."""
    return branches().get(versions.major(driver)) if driver else None


def supported_branches(today: date) -> list[Branch]:
    """Long-term and production branches that get fixes on that day, oldest first."""
    return [
        one for one in branches().values() if one.kind in {"LTS", "PB"} and not one.ended(today)
    ]


def last_day(text: str | None) -> date | None:
    """2028-06-30 as a date; 2028-06 as the month's last day; None stays None."""
    if text is None:
        return None
    if len(text) == len("2028-06"):
        year, month = (int(part) for part in text.split("-"))
        return date(year, month, monthrange(year, month)[1])
    return date.fromisoformat(text)


def distro(name: str) -> dict[str, Any]:
    """The entry of a distribution in distros.yaml.

    Raises KilnError (exit code 2) when there is none, with the nearest one that is.
    """
    known: dict[str, dict[str, Any]] = table("distros")["distros"]
    if name not in known:
        raise KilnError(
            f"{name} is not a known distribution",
            hint=did_you_mean(name, known)
            + " A new one is an entry in kiln/facts/knowledge/distros.yaml.",
        )
    return known[name]


def cuda_release(version: str) -> str | None:
    """The known toolkit release a version or series names (12.2 → 12.2.2), or None."""
    known: dict[str, Any] = table("cuda")["releases"]
    if version in known:
        return version
    return versions.newest(
        release for release in known if versions.same(versions.series(release), version)
    )


def driver_cuda(driver: str) -> str:
    """The newest CUDA major that a driver's branch runs: 580.178.04 → 13; the oldest known major
    for a driver from before them all."""
    floors: dict[str, str] = table("cuda")["floors"]
    majors = sorted(floors, key=versions.key)
    branch_name = versions.major(driver)
    runs = [
        major for major in majors if versions.at_least(branch_name, versions.major(floors[major]))
    ]
    return runs[-1] if runs else majors[0]


def efa_plugin(installer: str) -> str | None:
    """The aws-ofi-nccl version in an EFA installer: its own entry's, or the last one before it."""
    releases: dict[str, dict[str, str]] = table("efa")["releases"]
    earlier = [v for v, entry in releases.items() if "ofi_nccl" in entry]
    last = versions.newest(v for v in earlier if versions.at_least(installer, v))
    return releases[last]["ofi_nccl"] if last else None


@dataclass(frozen=True)
class Packages:
    """Packages of one component: `names` have the component's version, `unversioned` their own.

    `built_for` is the CUDA that the packages' revision names, empty when it names none.
    """

    names: tuple[str, ...]
    unversioned: tuple[str, ...]
    built_for: str


def packages(component: str, version: str, **fields: str) -> Packages | None:
    """What a component's packages are called at a version, by packages.yaml; None when the archive
    has none. `fields` are what its conditions and names refer to, `archive` and `module` say.

    Raises KilnError when a condition or a name needs a field that is not given.
    """
    rows = table("packages")["packages"][component]
    row = first_match("packages.yaml", component, rows, version, fields)
    if row is None:
        return None

    def filled(texts: list[str]) -> tuple[str, ...]:
        return tuple(fill("packages.yaml", component, text, version, fields) for text in texts)

    return Packages(
        names=filled(row["names"]),
        unversioned=filled(row.get("unversioned", [])),
        built_for="".join(filled([row.get("built_for", "")])),
    )


def first_match(
    file: str, key: str, rows: list[dict[str, Any]], version: str, fields: dict[str, str]
) -> dict[str, Any] | None:
    """The first of a table's rows whose `when` holds: `from` and `below` are of `version`, all
    other conditions of `fields`, where a list names alternatives."""

    def holds(condition: str, value: str | list[str]) -> bool:
        if condition == "from":
            return versions.at_least(version, str(value))
        if condition == "below":
            return versions.below(version, str(value))
        if condition not in fields:
            raise KilnError(
                f"kiln/facts/knowledge/{file}: {key}: there is no condition {condition!r}",
                hint=did_you_mean(condition, ["from", "below", *fields]),
            )
        return fields[condition] in (value if isinstance(value, list) else [value])

    return next(
        (row for row in rows if all(holds(*item) for item in row.get("when", {}).items())), None
    )


def fill(file: str, key: str, text: str, version: str, fields: dict[str, str]) -> str:
    """A name or URL of a table with its `{placeholders}` filled in."""
    known = {"version": version, "branch": versions.major(version), **fields}
    try:
        return text.format(**known)
    except (KeyError, IndexError, ValueError) as error:
        raise KilnError(
            f"kiln/facts/knowledge/{file}: {key}: {text!r} cannot be filled in: {error}",
            hint=f"its placeholders may be {', '.join(sorted(known))}",
        ) from None


def nvlsm_versions() -> list[str]:
    """The known releases of NVLSM, oldest first."""
    return sorted(table("drivers")["nvlsm"]["versions"], key=versions.key)


@dataclass(frozen=True)
class Checksum:
    """A vendor's file as somebody published it. `confirmed` is false where `source` does not show
    the hash to whoever opens it."""

    sha256: str
    source: str
    confirmed: bool


def known_sha256(url: str) -> Checksum | None:
    """What is published about a vendor's file, by its URL; None when nothing is."""
    for files in table("checksums")["files"]:
        for version, sha256 in files["sha256"].items():
            if url == files["url"].format(version=version):
                source = files["source"].replace("{version}", version)
                return Checksum(sha256, source, confirmed(files))
    return None


@dataclass(frozen=True)
class SigningKey:
    """A key of keys.yaml by its primary fingerprint; `confirmed` is false where fewer than two
    independent sources show it."""

    name: str
    fingerprint: str
    signs: str
    sources: tuple[str, ...]
    confirmed: bool


@cache
def signing_keys() -> dict[str, SigningKey]:
    """The keys that provisioners trust, by name."""
    return {
        name: SigningKey(
            name=name,
            fingerprint=str(entry["fingerprint"]),
            signs=entry["signs"],
            sources=tuple(entry["sources"]),
            confirmed=confirmed(entry),
        )
        for name, entry in table("keys")["keys"].items()
    }
