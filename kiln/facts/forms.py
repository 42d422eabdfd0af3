"""What single values of an overlay's facts must look like, and which names they may refer to.

`overrides` holds a file against the table's shape; here are the fields for which a value of the
right kind can still be wrong. A pattern is a path in the table, with `*` for any key or index.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import Any, get_args

from kiln.base import vocabulary
from kiln.base.errors import did_you_mean
from kiln.base.placeholders import names_in
from kiln.base.vocabulary import Form
from kiln.base.yaml_files import Path_

# Any table of facts by its name.
Read = Callable[[str], dict[str, Any]]
# The table with the overlay's facts, the path of a value → the names that it may be.
_Names = Callable[[dict[str, Any], Path_, Read], Iterable[str]]


class UnlikeError(Exception):
    """A value that does not look like the table's, or cannot be right."""

    def __init__(self, path: Path_, message: str, hint: str = "", *, at_key: bool = False) -> None:
        super().__init__(message)
        self.path, self.message, self.hint, self.at_key = path, message, hint, at_key


@dataclass(frozen=True)
class _Known:
    """A name of something else; `what` is that in messages."""

    what: str
    names: _Names


def _words(what: str, words: Iterable[str]) -> _Known:
    fixed = tuple(words)
    return _Known(what, lambda whole, path, read: fixed)


def _entries(table: str, key: str) -> _Names:
    return lambda whole, path, read: read(table)[key]


def _kernels(whole: dict[str, Any], path: Path_, read: Read) -> Iterable[str]:
    names: Iterable[str] = whole["distros"][path[1]]["kernels"]["entries"]
    return names


def _measured(whole: dict[str, Any], path: Path_, read: Read) -> Iterable[str]:
    return sorted({entry["kernel"] for entry in read("kernel_builds")["measured"]})


_SERIES = Form(r"^[0-9]+\.[0-9]+$", "a series such as '6.12'")
_BRANCH = Form(r"^[0-9]{3}$", "a driver's branch such as '580'")
_NUMBER = Form(r"^[0-9]+$", "a major version such as '14'")
_REPOSITORY = Form(r"^[a-z0-9][a-z0-9.-]*$", "a repository's name such as nvidia-cuda")
_PCI_ID = Form(r"^[0-9a-f]{4}$", "a PCI device id such as '2330'")
_FINGERPRINT = Form(r"^[0-9A-F]{40}$", "a primary fingerprint: 40 capital hexadecimal digits")
_MODULES = _words("kernel module", ("open", "proprietary"))
_ARCHES = _words("processor", vocabulary.ARCHES)
_FLAVORS = _words("flavour", vocabulary.FLAVORS)

# Values, by table and pattern.
_VALUES: dict[str, dict[str, Form | _Known]] = {
    "distros": {
        "distros.*.name": vocabulary.NAME,
        "distros.*.family": _words("family", get_args(vocabulary.Family)),
        "distros.*.package_manager": _words("package manager", get_args(vocabulary.PackageManager)),
        "distros.*.ssh_user": vocabulary.USER,
        "distros.*.root_device": vocabulary.DEVICE,
        "distros.*.cuda_repo": _Known("repository in cuda.yaml", _entries("cuda", "repos")),
        "distros.*.parents.*.ssm_parameter": vocabulary.PARAMETER,
        "distros.*.parents.*.owner": vocabulary.OWNER,
        "distros.*.parents.*.name": vocabulary.AMI_NAME,
        "distros.*.tried.*.*": _ARCHES,
        "distros.*.codename": vocabulary.CUDA_REPO,
        "distros.*.package_snapshot": _Known(
            "entry of `package_snapshots`", lambda whole, path, read: whole["package_snapshots"]
        ),
        "distros.*.kernels.default": _Known("entry of this distribution's kernels", _kernels),
        "distros.*.kernels.entries.*.series": _SERIES,
        "distros.*.kernels.entries.*.packages.*": vocabulary.PACKAGE,
        "distros.*.kernels.entries.*.measured": _Known("kernel in kernel_builds.yaml", _measured),
        "distros.*.kernels.entries.*.proxy": _Known("kernel in kernel_builds.yaml", _measured),
        "distros.*.packaged_drivers.*": vocabulary.DRIVER,
        "distros.*.open_only_from": _BRANCH,
    },
    "instances": {
        "types.*.type": vocabulary.INSTANCE_TYPE,
        "types.*.gpu": _Known("GPU in instances.yaml", lambda whole, path, read: whole["gpus"]),
        "types.*.arch": _ARCHES,
        "gpus.*.open_modules": _words("value", ("supported", "required", "unsupported")),
        "gpus.*.prefers.module": _MODULES,
        "gpus.*.pci_device_ids.*": _PCI_ID,
        "gpus.*.compute_capability": _SERIES,
        "nvswitches.*.pci_device_id": _PCI_ID,
    },
    "drivers": {
        "branches.*.kind": _words("kind of branch", ("LTS", "PB", "NFB")),
        "branches.*.native_cuda": _SERIES,
        "branches.*.modules.*": _MODULES,
        "gpus.*.first_branch": _BRANCH,
    },
    "mig": {
        "gpus.*.arch": _Known(
            "entry of `mode_change`", lambda whole, path, read: whole["mode_change"]
        )
    },
    # They are names of files, too.
    "archives": {
        **{f"{listed}.*.name": _REPOSITORY for listed in ("archives", "security", "vendors")},
    },
    "keys": {"keys.*.fingerprint": _FINGERPRINT},
    "checksums": {"files.*.sha256.*": vocabulary.SHA256},
}
# Keys, by table and pattern.
_KEYS: dict[str, dict[str, Form | _Known]] = {
    "distros": {
        "distros.*": vocabulary.ID,
        "distros.*.parents.*": _FLAVORS,
        "distros.*.tried.*": _FLAVORS,
        "distros.*.packaged_drivers.*": _BRANCH,
    },
    "drivers": {
        "branches.*": _BRANCH,
        "branches.*.versions.*": vocabulary.DRIVER,
        "branches.*.betas.*": vocabulary.DRIVER,
        "gpus.*": _Known("GPU in instances.yaml", _entries("instances", "gpus")),
    },
}
_OF_ARCHIVE = ("arch", "codename", "deb", "distro", "nvidia", "os", "release", "uname")
_OF_RECIPE = (
    *("arch", "archive", "branch", "deb", "distro", "family", "nvidia", "os", "repo"),
    *("uname", "version"),
)
_OF_PACKAGE = (
    *_OF_RECIPE,
    *("cuda_major", "cuda_package", "cuda_series", "driver_cuda", "module"),
)
_OF_PARENT = ("arch", "deb_arch", "kubernetes", "parallelcluster")
PLACEHOLDERS: dict[str, dict[str, tuple[str, ...]]] = {
    "archives": {
        **{
            f"{listed}.*.{key}": _OF_ARCHIVE
            for listed in ("archives", "security")
            for key in ("url", "mirror_list", "suites.*")
        },
        "vendors.*.*.url": (*_OF_ARCHIVE, "url"),
        "vendors.*.*.suites.*": (*_OF_ARCHIVE, "url"),
    },
    "checksums": {"files.*.url": ("version",)},
    "distros": {
        "package_snapshots.*.lines.*": ("codename", "snapshot"),
        "distros.*.parents.*.ssm_parameter": _OF_PARENT,
        "distros.*.parents.*.name": _OF_PARENT,
        "distros.*.end_means": ("cuda_repo", "last_cuda", "last_driver", "last_efa"),
    },
    "downloads": {
        "repositories.*.*.url": _OF_RECIPE,
        "downloads.*.*.url": (*_OF_RECIPE, "build"),
    },
    "drivers": {"urls.*.url": ("version",)},
    "nccl": {
        "packages.*.library": ("series", "version"),
        "packages.*.headers": ("series", "version"),
    },
    "packages": {
        "packages.*.*.names.*": _OF_PACKAGE,
        "packages.*.*.unversioned.*": _OF_PACKAGE,
        "packages.*.*.built_for": _OF_PACKAGE,
        "streams.*.*": ("branch",),
    },
}
"""What may be in the `{…}` of a text, by table and pattern; in other texts a brace is itself."""

# Keys that a bake needs and `check` cannot judge.
_OF_A_PARENT = ("family", "ssh_user", "root_device", "kernels")


def check_forms(own: Any, whole: dict[str, Any], name: str, read: Read) -> None:
    """Raise UnlikeError for a value of the overlay's facts `own` that cannot be right.

    `whole` is the table of that name with them merged in.
    """
    for path, value, is_key in _walk(own, ()):
        rules = (_KEYS if is_key else _VALUES).get(name, {})
        for pattern, rule in rules.items():
            if value is not None and matches(path, pattern):
                _check(rule, path, value, whole, read, is_key=is_key)
        if not is_key and isinstance(value, str):
            for pattern, allowed in PLACEHOLDERS.get(name, {}).items():
                if matches(path, pattern):
                    _check_placeholders(path, value, allowed)
        if not is_key and isinstance(value, str) and str(path[-1]).endswith("source"):
            _check_source(path, value, whole.get("sources", {}))
    if name == "distros":
        _check_distros(own, whole)
    if name == "drivers":
        _check_branches(own)
    if name == "checksums":
        _check_hashes(own)


def _walk(value: Any, path: Path_) -> Iterator[tuple[Path_, Any, bool]]:
    """Each scalar, and each key of a mapping with its own path: (path, value, is it a key?)."""
    if isinstance(value, Mapping):
        for key, entry in value.items():
            yield (*path, key), key, True
            yield from _walk(entry, (*path, key))
    elif isinstance(value, list):
        for index, entry in enumerate(value):
            yield from _walk(entry, (*path, index))
    elif path:
        yield path, value, False


def matches(path: Path_, pattern: str) -> bool:
    """Is the path of a value one of the pattern?"""
    parts = pattern.split(".")
    return len(path) == len(parts) and all(
        part in ("*", name) for part, name in zip(parts, path, strict=True)
    )


def _check(
    rule: Form | _Known, path: Path_, value: Any, whole: dict[str, Any], read: Read, *, is_key: bool
) -> None:
    shown = vocabulary.quoted(value)
    if isinstance(rule, Form):
        if not rule.fits(value):
            raise UnlikeError(path, f"{shown} is not {rule.what}", at_key=is_key)
        return
    names = rule.names(whole, path, read)
    if value not in names:
        hint = did_you_mean(str(value), names)
        raise UnlikeError(path, f"{shown}: there is no such {rule.what}", hint, at_key=is_key)


def _check_placeholders(path: Path_, value: str, allowed: Iterable[str]) -> None:
    """Refuse a `{…}` for which nothing is filled in."""
    try:
        names = names_in(value)
    except ValueError as error:
        raise UnlikeError(path, str(error)) from None
    for name in names:
        if name not in allowed:
            what = f"unknown placeholder {{{name}}}"
            raise UnlikeError(path, what, did_you_mean(name, allowed))


def _check_source(path: Path_, value: str, names: Mapping[str, str]) -> None:
    """Refuse the misspelt short name of a source; anything but a single word is a source."""
    for part in value.split("; ") if names else ():
        if part in names or part in ("none", "ours") or any(sign in part for sign in " :/"):
            continue
        what = f"{vocabulary.quoted(part)}: there is no such entry of this table's `sources`"
        hint = did_you_mean(part, names) + "; or write the address itself"
        raise UnlikeError(path, what, hint)


def _check_distros(own: Mapping[str, Any], whole: dict[str, Any]) -> None:
    """A distribution with parents must have what a bake asks of it."""
    for name in own.get("distros") or ():
        entry = whole["distros"][name]
        path: Path_ = ("distros", name)
        for flavor, parent in (entry.get("parents") or {}).items():
            if ("ssm_parameter" in parent) == ("owner" in parent and "name" in parent):
                what = "must have either ssm_parameter, or owner and name"
                raise UnlikeError((*path, "parents", flavor), what, at_key=True)
        if not entry.get("parents"):
            continue
        needed = [*_OF_A_PARENT, *(("codename",) if entry.get("family") == "debian" else ())]
        missing = [key for key in needed if key not in entry]
        if missing:
            what = f"lacks {', '.join(missing)}, which a distribution with `parents` needs"
            raise UnlikeError(
                path, what, "docs/add-a-distribution.md says what each is", at_key=True
            )


def _check_branches(own: Mapping[str, Any]) -> None:
    """A driver stands under its own branch, and its date is one."""
    for name, entry in (own.get("branches") or {}).items():
        for listed in ("versions", "betas"):
            for version, day in (entry.get(listed) or {}).items():
                path: Path_ = ("branches", name, listed, version)
                if not version.startswith(f"{name}."):
                    raise UnlikeError(path, f"{version} is not of branch {name}", at_key=True)
                if day is not None and not is_day(day.removeprefix("<=")):
                    what = f"{vocabulary.quoted(day)} is not a day or a month such as 2026-11-20"
                    raise UnlikeError(path, what)


def _check_hashes(own: Mapping[str, Any]) -> None:
    """Where each version's hash has a source of its own, none is left out."""
    for index, entry in enumerate(own.get("files") or ()):
        if isinstance(entry.get("source"), Mapping):
            for version in entry.get("sha256") or ():
                if version not in entry["source"]:
                    what = f"names no source of the hash of {version}"
                    raise UnlikeError(("files", index, "source"), what, at_key=True)


def is_day(text: str) -> bool:
    """Is it a day (2028-06-30) or a month (2028-06) of the calendar?"""
    day = text if len(text) > len("2028-06") else f"{text}-01"
    try:
        return vocabulary.DAY.fits(day) and bool(date.fromisoformat(day))
    except ValueError:
        return False
