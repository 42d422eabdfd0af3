"""The packages for which an overlay asks the lab for a stand-in: overlay/lab/packages.yaml."""

from __future__ import annotations

from collections.abc import Collection

from kiln.base import overlay
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.vocabulary import Form, quoted
from kiln.base.yaml_files import load_yaml

VERSION_TEXT = Form(r"^[0-9][A-Za-z0-9.+~_-]*$", "a package's version such as 1.7.1")


def overlay_stand_ins(distros: Collection[str]) -> dict[str, dict[str, str]]:
    """Distribution → name → version of the stand-ins that overlays add; `distros` are those whose
    repositories are the lab's own.

    Raises KilnError (exit status 2) with file and line for what is not such a list.
    """
    added: dict[str, dict[str, str]] = {}
    for path in overlay.own_files("lab/*"):
        if path.name != "packages.yaml":
            what = "an overlay has one file for the lab, overlay/lab/packages.yaml"
            raise overlay.overlay_mistake(path, what)
        document = load_yaml(path, overlay.shown_path(path))
        data = document.data if isinstance(document.data, dict) else {"": document.data}
        for name, packages in data.items():
            place = document.key_place((name,))
            if name not in distros:
                suggestion = did_you_mean(name, distros)
                what = "the lab passes on the repositories of all but Amazon Linux"
                raise KilnError(f"{place}: {name!r}: {what}", hint=suggestion, place=place)
            if not isinstance(packages, dict):
                raise KilnError(f"{place}: {name}: expected `name: version` lines", place=place)
            for package, version in packages.items():
                if not VERSION_TEXT.fits(version):
                    place = document.key_place((name, package))
                    text = "" if isinstance(version, str) else ", put in quotes"
                    what = f"{package}: {quoted(version)} is not {VERSION_TEXT.what}{text}"
                    raise KilnError(f"{place}: {what}", place=place)
            added.setdefault(name, {}).update(packages)
    return added
