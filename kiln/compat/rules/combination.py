"""The input of the rules: a recipe, or a combination from the command line, as one flat record."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from datetime import date
from typing import Any

from kiln import components, facts
from kiln.base import versions
from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe, Volume
from kiln.components import Step
from kiln.facts import Branch, InstanceType, table


@dataclass(frozen=True)
class Kernel:
    """The kernel that an image boots, as far as known. `release` is None if only the series is
    known; `measured` and `proxy` name a kernel in kernel_builds.yaml."""

    name: str
    series: str
    release: str | None = None
    measured: str | None = None
    proxy: str | None = None
    rolls: bool = False

    def __str__(self) -> str:
        return self.release or self.series


@dataclass(frozen=True)
class Combination:
    """A distribution, a GPU stack and its instance types. None means unspecified: not judged.

    `cuda_repo` is the CUDA repository if a matrix replaces the distribution's own. `packages` and
    `downloads` are what the components install. `mig` are the MIG profiles per GPU, `mig_label` is
    a label of mig-config.yaml, `latest` the components requested without a version. `complete`
    means that a component that is None is not on the image.
    """

    distro: str
    today: date
    cuda_repo: str | None = None
    driver: str | None = None
    arch: str = "x86_64"
    flavor: str = "base"
    driver_source: str | None = None
    kernel_module: str | None = None
    kernel: str | None = None
    ssm_parameter: str | None = None
    reboots_into_kernel: bool | None = None
    cuda: str | None = None
    cuda_source: str = "repo"
    cudnn: str | None = None
    nccl: str | None = None
    efa: str | None = None
    ofi_nccl: str | None = None
    gdrcopy: str | None = None
    dcgm: str | None = None
    dcgm_exporter: str | None = None
    container_toolkit: str | None = None
    fabric_manager: bool | None = None
    nvlsm: bool | None = None
    imex: bool | None = None
    packages: tuple[str, ...] = ()
    downloads: tuple[str, ...] = ()
    mig: tuple[str, ...] = ()
    mig_label: str | None = None
    kubernetes: str | None = None
    parallelcluster: str | None = None
    volume: Volume | None = None
    extended_support: bool = False
    instance_types: tuple[InstanceType, ...] = ()
    build_instances: tuple[str, ...] = ()
    latest: tuple[str, ...] = ()
    complete: bool = False

    @property
    def about(self) -> dict[str, Any]:
        """The distribution's entry in distros.yaml."""
        return facts.distro(self.distro)

    @property
    def branch(self) -> Branch | None:
        """The driver's branch, if known."""
        return facts.branch(self.driver)

    @property
    def branch_name(self) -> str | None:
        """The driver's major number: 510.47.03 → 510."""
        return versions.major(self.driver) if self.driver else None

    @property
    def cuda_major(self) -> str | None:
        """11.6.2 → 11."""
        return versions.major(self.cuda) if self.cuda else None

    @property
    def modules(self) -> frozenset[str]:
        """The kernel modules on the image: open, proprietary or both; empty if unspecified."""
        both = frozenset({"open", "proprietary"})
        return both if self.kernel_module == "both" else both & {self.kernel_module}

    @property
    def repository(self) -> str:
        """NVIDIA's name of the CUDA repository that the image installs from."""
        return self.cuda_repo or str(self.about["cuda_repo"])

    @property
    def repo(self) -> dict[str, Any]:
        """The entry of that repository in cuda.yaml."""
        entry: dict[str, Any] = table("cuda")["repos"][self.repository]
        return entry

    @property
    def debs(self) -> bool:
        """Does the distribution use deb packages?"""
        return bool(self.about["package_manager"] == "apt")

    @property
    def repo_has_driver(self) -> bool:
        """Does the CUDA repository have packages of the driver's branch?"""
        held = self.repo.get("drivers", {})
        name = self.branch_name or ""
        return not (
            ("first" in held and versions.below(name, held["first"]))
            or ("last" in held and not versions.at_least(held["last"], name))
        )

    @property
    def distro_has_driver(self) -> bool:
        """Does the distribution itself package exactly this driver, as far as known?"""
        return self.driver in self.about.get("packaged_drivers", {}).values()

    @property
    def driver_from(self) -> str:
        """Where the driver comes from: as specified, or the first of repo, distro, runfile."""
        if self.driver_source:
            return self.driver_source
        if self.repo_has_driver:
            return "repo"
        return "distro" if self.distro_has_driver else "runfile"

    @property
    def plugin(self) -> str | None:
        """The version of aws-ofi-nccl on the image: built from source, or bundled with EFA."""
        if self.ofi_nccl:
            return self.ofi_nccl
        if self.efa and facts.bundles_plugin(self.efa, self.arch, self.distro):
            return facts.efa_plugin(self.efa)
        return None

    @property
    def boot_kernel(self) -> Kernel | None:
        """The kernel that the image boots: the pinned one, or its parent AMI's; None if unknown."""
        kernels = self.about.get("kernels")
        if kernels is None:
            return None
        entries: dict[str, dict[str, Any]] = kernels["entries"]
        if self.kernel:
            return _pinned(self.kernel, entries)
        for name, entry in entries.items():
            parameter = entry.get("parameter")
            if self.ssm_parameter and parameter and f"/{parameter}-" in self.ssm_parameter:
                return _kernel(name, entry)
        name = _parent_kernel(self) or kernels["default"]
        return _kernel(name, entries[name])


def _pinned(wanted: str, entries: dict[str, dict[str, Any]]) -> Kernel | None:
    """A kernel pinned by key, package, release or series. An unknown one gets the series in its
    name; None if there is none."""
    for name, entry in entries.items():
        packages = entry.get("packages", ())
        if wanted in {name, entry.get("release"), entry["series"], *packages}:
            return _kernel(name, entry)
    number = versions.key(wanted)[:2]
    return Kernel(wanted, ".".join(str(part) for part in number)) if len(number) > 1 else None


def _kernel(name: str, entry: dict[str, Any]) -> Kernel:
    keys = ("release", "measured", "proxy", "rolls")
    return Kernel(
        name=name,
        series=entry["series"],
        **{key: entry[key] for key in keys if key in entry},
    )


def _parent_kernel(combination: Combination) -> str | None:
    """The kernel of an EKS, ECS or ParallelCluster parent, as a key of the distro's kernels."""
    if combination.flavor == "base":
        return None
    flavor = table("distros")["flavors"][combination.flavor]
    kernels: str | list[dict[str, str]] | None = flavor.get("kernels", {}).get(combination.distro)
    if kernels is None or isinstance(kernels, str):
        return kernels
    kubernetes = combination.kubernetes or ""
    reached = versions.last_reached(kernels, "from", kubernetes)
    return str(reached["kernel"]) if reached else None


def recipe_combination(recipe: Recipe, today: date, **more: Any) -> Combination:
    """A recipe as a combination; `more` adds or replaces fields.

    Raises KilnError (exit status 2) if one of its instance types has no GPU.
    """
    chosen = recipe.components
    filled = _filled(recipe)
    packages = _packages(filled)
    order = [chosen.index(name) for name in ("kernel", "nvidia-driver") if name in chosen]
    values: dict[str, Any] = {
        "distro": recipe.distro.id,
        "cuda_repo": recipe.distro.cuda_repo,
        "today": today,
        "driver": recipe.driver,
        "arch": recipe.arch,
        "flavor": recipe.flavor,
        "driver_source": recipe.driver_source,
        "kernel_module": recipe.kernel_module,
        "kernel": recipe.kernel,
        "ssm_parameter": recipe.source_ami.ssm_parameter,
        "reboots_into_kernel": order == sorted(order) and components.get("kernel").reboots,
        "cuda": recipe.cuda,
        "cudnn": recipe.cudnn,
        "nccl": recipe.nccl,
        "efa": recipe.efa,
        "ofi_nccl": recipe.ofi_nccl,
        "gdrcopy": recipe.gdrcopy,
        "dcgm": recipe.dcgm,
        "dcgm_exporter": recipe.dcgm_exporter,
        "container_toolkit": recipe.container_toolkit,
        "fabric_manager": "nvidia-fabricmanager" in chosen,
        "nvlsm": any(name.split("=")[0] == "nvlsm" for name in packages),
        "imex": recipe.imex,
        "mig_label": None if recipe.mig_config == "none" else recipe.mig_config,
        "packages": packages,
        "downloads": tuple(
            download.url for component in filled for download in component.downloads
        ),
        "kubernetes": recipe.kubernetes,
        "parallelcluster": recipe.parallelcluster,
        "volume": recipe.volume,
        "extended_support": recipe.extended_support,
        "complete": True,
        "instance_types": tuple(facts.instance(name) for name in recipe.target_instance_types),
        "build_instances": tuple(
            dict.fromkeys(
                (
                    *(recipe.row.account.instance_types or (recipe.instance_type,)),
                    recipe.verify_instance_type,
                )
            )
        ),
    }
    return Combination(**{**values, **more})


def _packages(filled: list[Step]) -> tuple[str, ...]:
    """The packages that the components install, as `name=version`."""
    return tuple(
        package
        for component in filled
        for name, value in component.env.items()
        if name.endswith("_PACKAGES")
        for package in value.split()
    )


def _filled(recipe: Recipe) -> list[Step]:
    """What the components will do, without those that lack a version they depend on: the rule
    LIB-CUDA and `render` report that."""
    filled = []
    for name in recipe.components:
        with suppress(KilnError):
            filled.append(components.get(name).for_recipe(recipe))
    return filled
