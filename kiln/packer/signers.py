"""Which pinned key signs what a bake takes: key files, detached signatures, repositories."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import PurePosixPath

from kiln.base.errors import KilnError
from kiln.base.recipe import Recipe
from kiln.components import Download, Step
from kiln.facts import table


def key_fingerprint(step: Step, download: Download) -> str | None:
    """The key's fingerprint if the download is a key file, otherwise None."""
    if not download.env.endswith("_KEY"):
        return None
    file = PurePosixPath(download.url).name  # NVIDIA names its key files by fingerprint
    prints = _fingerprints(step)
    ending = file.split(".", maxsplit=1)[0].upper()
    named = [fingerprint for fingerprint in prints if fingerprint.endswith(ending)]
    return (named or prints)[0]


def file_of_signature(step: Step, download: Download) -> str | None:
    """The URL of the file that the download signs if it is a detached signature, or None."""
    return next((other.url for other in step.downloads if download.url == f"{other.url}.sig"), None)


def file_signer(step: Step, download: Download) -> str:
    """The fingerprint of the only key with which the component checks its signature.

    Raises KilnError (exit status 2) if it names none, or several.
    """
    prints = _fingerprints(step)
    if len(prints) != 1:
        raise KilnError(
            f"component {step.name!r} downloads the signature {download.url}, but names "
            f"{len(prints)} keys to check it with",
            hint="name the vendor's key, and no other, in the component's `keys`",
        )
    return prints[0]


def _fingerprints(step: Step) -> list[str]:
    """The fingerprints of the component's signing keys."""
    keys = table("keys")["keys"]
    return [str(keys[name]["fingerprint"]) for name in step.keys.values()]


def repository_packages(filled: list[Step], recipe: Recipe) -> Iterable[tuple[str, str, list[str]]]:
    """(repository, fingerprint of its key, packages) per component that installs packages."""
    own = {step.name: _repository(step) for step in filled}
    vendor = own.get("nvidia-repo")
    others = _libraries(filled, vendor)
    for step in filled:
        packages, libraries = _named(step, "_PACKAGES"), _named(step, "_OS_PACKAGES")
        packages = [package for package in packages if package not in libraries]
        # driver_source applies to the driver and to components that must have its version.
        from_distro = recipe.driver_source == "distro" and step.needs in {
            None,
            "driver",
            "imex",
        }
        where = own[step.name] or (others if step.name in {"cudnn", "nccl"} else vendor)
        if from_distro or where is None:
            packages, libraries = [], [*packages, *libraries]
        if libraries:
            yield f"archive of {recipe.distro.id}", "the distribution's own keys", libraries
        if packages and where:
            yield where[0], where[1], packages


def _libraries(filled: list[Step], vendor: tuple[str, str] | None) -> tuple[str, str] | None:
    """The repository of cuDNN and NCCL: NVIDIA's for the distribution, unless there is another."""
    urls = [step.env.get("CUDA_LIBRARIES_REPO_URL") for step in filled if vendor]
    return next(((url, vendor[1]) for url in urls if url and vendor), vendor)


def _named(step: Step, ending: str) -> list[str]:
    """The packages in the component's variables whose names end with `ending`."""
    lists = [value for name, value in step.env.items() if name.endswith(ending)]
    return [package for value in lists for package in value.split()]


def _repository(step: Step) -> tuple[str, str] | None:
    """The repository that a component sets up, and its key's fingerprint."""
    url = next((v for name, v in step.env.items() if name.endswith("_REPO_URL")), None)
    if not url:
        return None
    key = next(download for download in step.downloads if download.env.endswith("_KEY"))
    return url, key_fingerprint(step, key) or ""
