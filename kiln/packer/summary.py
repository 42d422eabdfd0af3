"""What a change makes of the AMIs, a line for each: for a pull request.

Compares what the matrix says now with what `packer/` held at a commit: the recipes' fields, the
packages of their components, the files that are rendered for their images.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kiln.base.errors import KilnError, operation_failed
from kiln.base.paths import ROOT, packer_dir
from kiln.base.recipe import Recipe
from kiln.base.wanted_package import WantedPackage, parse_package
from kiln.packer import render
from kiln.packer.hcl_values import parse_hcl
from kiln.packer.staleness import shown_packer

# Fields that follow from others, or that say where an AMI is made and not what is on it.
_SILENT = ("name", "line", "components", "row")
_NONE = "none"
# Without both a folder is none of ours.
_NEEDED = {render.RECIPE, render.RECIPE_JSON}


def summary_lines(changed: Mapping[str, Sequence[str]]) -> list[str]:
    """What `changes` returns for a person: one line per AMI."""
    return [f"{ami}: {', '.join(what)}" for ami, what in changed.items()]


def changes(recipes: Sequence[Recipe], against: str) -> dict[str, list[str]]:
    """Each AMI that differs from the commit `against`, in the matrix's order → its changes.

    Raises KilnError (exit status 2) for a commit that git does not know, or whose files there
    cannot be read.
    """
    before = _at_commit(against)
    scripts = _changed_scripts(against)
    changed = {}
    for recipe in recipes:
        old = before.pop(recipe.line, None)
        now = render.render_files(recipe)
        what = _differences(old, now) if old else [f"new, driver {recipe.driver}"]
        what += [f"{name}.sh changed" for name in recipe.components if name in scripts]
        if what:
            changed[_called(recipe.as_json())] = what
    gone = [_called(json.loads(old[render.RECIPE_JSON])) for old in before.values()]
    return changed | {name: ["removed"] for name in gone}


def _called(recipe: Mapping[str, Any]) -> str:
    """An AMI as people call it: al2023 lts base, with its processor if that is not x86_64."""
    distro, flavor, arch = recipe["distro"]["id"], recipe["flavor"], recipe["arch"]
    stack = recipe["line"].removeprefix(f"{distro}-").removesuffix(f"-{flavor}-{arch}")
    return " ".join([distro, stack, flavor, *([arch] if arch != "x86_64" else [])])


def _differences(old: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    was, is_now = (json.loads(files[render.RECIPE_JSON]) for files in (old, now))
    fields = [name for name in is_now if name not in _SILENT and was.get(name) != is_now[name]]
    changes = {name: (_shown(was.get(name)), _shown(is_now[name])) for name in fields}
    lines = [f"{name.replace('_', ' ')} {a} → {b}" for name, (a, b) in changes.items()]
    lines += [f"+ {name}" for name in is_now["components"] if name not in was["components"]]
    lines += [f"- {name}" for name in was["components"] if name not in is_now["components"]]
    lines += _packages(_listed(old), _listed(now), changes)
    files = (set(old) | set(now)) - {render.RECIPE, render.RECIPE_JSON}
    for path in sorted(files):
        if old.get(path) != now.get(path):
            how = "new" if path not in old else "gone" if path not in now else "changed"
            lines.append(f"/{path.removeprefix('files/')} {how}")
    return lines


def _shown(value: Any) -> str:
    if isinstance(value, dict | list):
        return json.dumps(value, sort_keys=True)
    return _NONE if value in (None, False) else str(value)


def _packages(
    old: Mapping[str, WantedPackage],
    now: Mapping[str, WantedPackage],
    changes: Mapping[str, tuple[str, str]],
) -> Iterator[str]:
    """Packages that come, go or move; those that move as another's version does follow it."""
    followers = []
    for name in sorted(set(old) | set(now)):
        if name not in now:
            yield f"- {name}"
        elif name not in old:
            yield f"+ {' '.join(filter(None, [name, now[name].version]))}"
        elif old[name].version != now[name].version:
            move = (old[name].version or _NONE, now[name].version or _NONE)
            fields = [field for field, change in changes.items() if change == move]
            own = {f"{vendor}{field}" for field in fields for vendor in ("", "nvidia-")}
            if not fields:
                yield f"{name} {move[0]} → {move[1]}"
            elif now[name].component not in own:
                followers.append(name)
    if followers:
        yield f"{', '.join(followers)} {'follows' if len(followers) == 1 else 'follow'}"


def _listed(files: Mapping[str, str]) -> dict[str, WantedPackage]:
    """The packages that a recipe's components install, by name."""
    packages = {}
    for component, variable, value in _variables(files[render.RECIPE]):
        if variable.endswith(("_PACKAGES", "_PACKAGE")):
            for text in value.split():
                package = parse_package(component, text)
                packages[package.name] = package
    return packages


def _variables(text: str) -> Iterator[tuple[str, str, str]]:
    """Component, variable and value of each variable in a recipe's HCL."""
    for block in parse_hcl(text).get("locals", []):
        for component, parts in block.get("components", {}).items():
            for variable, value in parts.get("env", {}).items():
                yield component, variable, str(value)


def _at_commit(commit: str) -> dict[str, dict[str, str]]:
    """Line → path → text of each AMI's own files in `packer/` at a commit."""
    done = _git("archive", "--format=tar", commit)
    if done.returncode:
        why = done.stderr.decode(errors="replace").strip().removeprefix("fatal: ")
        raise KilnError(
            f"git knows no {shown_packer()}/ at {commit}: {why}",
            hint="--against takes a commit, a branch or a tag that has the folder",
        )
    lines: dict[str, dict[str, str]] = {}
    with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
        for member in archive:
            line, _, path = member.name.partition("/")
            mine = path == render.RECIPE or path.startswith("files/")
            if member.isfile() and mine and (content := archive.extractfile(member)):
                lines.setdefault(line, {})[path] = content.read().decode(errors="replace")
    whole = {line: files for line, files in lines.items() if files.keys() >= _NEEDED}
    for line, files in whole.items():
        _require_readable(files, f"{shown_packer()}/{line} at {commit}")
    return whole


def _require_readable(files: Mapping[str, str], where: str) -> None:
    try:
        parse_hcl(files[render.RECIPE])
        json.loads(files[render.RECIPE_JSON])
    except ValueError as error:
        raise KilnError(
            f"{where} cannot be read: {error}",
            hint="compare with another commit, one whose packer/ was rendered whole",
        ) from None


def _changed_scripts(commit: str) -> set[str]:
    """The components whose provisioner differs from the commit's."""
    done = _git("diff", "--name-only", commit, "--", ":/")
    names = done.stdout.decode(errors="replace").split()
    return {match[1] for name in names if (match := re.search(r"provisioners/([\w-]+)\.sh$", name))}


def _git(*arguments: str) -> subprocess.CompletedProcess[bytes]:
    folder = packer_dir()
    try:
        return subprocess.run(
            # Root may ask in a checkout that another user owns.
            ["git", "-c", f"safe.directory={ROOT}", "-C", str(folder), *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            check=False,
        )
    except OSError as error:
        raise operation_failed(f"git does not run: {error}") from None
