"""NVIDIA's driver branches and their releases, and those of CUDA and the EFA installer
(`kiln/facts/knowledge/drivers.yaml`, `cuda.yaml`, `efa.yaml`)."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date
from functools import cache
from typing import Any

from kiln.base import versions
from kiln.facts.tables import last_day, table


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
        """Return True if support ended before `today`."""
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
        for name, entry in sorted(
            table("drivers")["branches"].items(), key=lambda entry: versions.key(entry[0])
        )
    }


def branch(driver: str | None) -> Branch | None:
    """The branch of a driver version, or None if that branch is unknown."""
    return branches().get(versions.major(driver)) if driver else None


def supported_branches(today: date) -> list[Branch]:
    """Long-term and production branches that still get fixes on that day, oldest first."""
    return [
        candidate
        for candidate in branches().values()
        if candidate.kind in {"LTS", "PB"} and not candidate.ended(today)
    ]


def driver_cuda(driver: str) -> str:
    """The newest CUDA major that a driver's branch runs: 580.178.04 → 13.

    The oldest known major for a driver older than all of them.
    """
    floors: dict[str, str] = table("cuda")["floors"]
    majors = sorted(floors, key=versions.key)
    branch_name = versions.major(driver)
    runs = [
        major for major in majors if versions.at_least(branch_name, versions.major(floors[major]))
    ]
    return runs[-1] if runs else majors[0]


def nvlsm_versions() -> list[str]:
    """The known releases of NVLSM, oldest first."""
    return sorted(table("drivers")["nvlsm"]["versions"], key=versions.key)


def cuda_release(version: str) -> str | None:
    """The known toolkit release that a version or series names (12.2 → 12.2.2), or None."""
    releases: dict[str, Any] = table("cuda")["releases"]
    if version in releases:
        return version
    return versions.newest(
        release for release in releases if versions.same(versions.series(release), version)
    )


def efa_plugin(installer: str) -> str | None:
    """The aws-ofi-nccl version in an EFA installer: from its own entry or the last one before."""
    releases: dict[str, dict[str, str]] = table("efa")["releases"]
    earlier = [v for v, entry in releases.items() if "ofi_nccl" in entry]
    last = versions.newest(v for v in earlier if versions.at_least(installer, v))
    return releases[last]["ofi_nccl"] if last else None


def bundles_plugin(installer: str, arch: str, distro: str) -> bool:
    """Return True if this EFA installer bundles aws-ofi-nccl on that processor and distribution."""
    efa = table("efa")
    served = efa["bundles_plugin_on"].get(arch, [distro])
    return distro in served and versions.at_least(installer, efa["bundles_plugin_from"][arch])
