"""What `./invoke check` answers: findings for the matrix or for one combination."""

from __future__ import annotations

import re
from typing import Any

from kiln.base.errors import KilnError
from kiln.compat import engine
from kiln.matrix import load


def check(given: dict[str, str | None], *, strict: bool) -> dict[str, Any]:
    """Findings for a combination, or for the whole matrix when nothing is given.

    {"findings": [Finding as JSON], "instance_types": [str]}; for the matrix also "amis": count.
    """
    asked = {name: value for name, value in given.items() if value is not None}
    if asked:
        for name in ("distro", "driver"):
            if name not in asked:
                raise KilnError(
                    f"a combination needs --{name}",
                    hint="./invoke check --distro al2 --driver 510.47.03, or no flag at all for "
                    "the matrix",
                )
        _versions(asked)
        return engine.check_combination(**asked, strict=strict)  # type: ignore[arg-type]
    recipes = load.load_recipes()
    found = [one.as_json() for one in engine.check_matrix(recipes, strict=strict)]
    types = sorted({kind for recipe in recipes for kind in recipe.target_instance_types})
    return {"amis": len(recipes), "findings": found, "instance_types": types}


# What the versions on the command line look like, with an example.
_SHAPES = {
    "driver": (r"[0-9]{3}(\.[0-9]+)+", "580.178.04"),
    "cuda": (r"[0-9]+\.[0-9]+(\.[0-9]+)?", "13.0.2"),
    "nccl": (r"[0-9]+\.[0-9]+\.[0-9]+", "2.28.9"),
    "efa": (r"[0-9]+\.[0-9]+\.[0-9]+", "1.51.0"),
    "kubernetes": (r"[0-9]+\.[0-9]+", "1.35"),
    "parallelcluster": (r"[0-9]+\.[0-9]+\.[0-9]+", "3.16.3"),
}
_OF_FLAVOR = {"kubernetes": "eks", "parallelcluster": "parallelcluster"}


def _versions(asked: dict[str, str]) -> None:
    """Raises KilnError for what is no whole version, and for that of a flavour not asked for."""
    for name, (shape, example) in _SHAPES.items():
        value = asked.get(name)
        flavor = _OF_FLAVOR.get(name)
        if value is None:
            continue
        if flavor and asked.get("flavor") != flavor:
            raise KilnError(
                f"--{name} says something about flavour {flavor} only",
                hint=f"add --flavor {flavor}, or leave --{name} out",
            )
        if re.fullmatch(shape, value) or (value == engine.LATEST and not flavor):
            continue
        meant = engine.meant(name, value)
        raise KilnError(
            f"--{name} {value} is not a version such as {example}",
            hint=f"did you mean {meant}?" if meant else "",
        )


def as_text(answer: dict[str, Any]) -> str:
    """The findings for a person, errors last so that they are seen."""
    from kiln.base.findings import Finding

    found = sorted((Finding(**one) for one in answer["findings"]), key=lambda one: one.level[::-1])
    count = sum(one.level == "error" for one in found)
    lines = [str(one) for one in found]
    subject = f"{answer['amis']} AMIs" if "amis" in answer else "this combination"
    verdict = "cannot work" if count else "valid"
    warnings = len(found) - count
    lines.append(f"{subject}: {verdict} ({count} errors, {warnings} warnings)")
    if answer["instance_types"] and "amis" not in answer:
        lines.append(f"serves: {', '.join(answer['instance_types'])}")
    return "\n".join(lines)


def exit_code(answer: dict[str, Any]) -> int:
    """1 when anything is an error."""
    return int(any(one["level"] == "error" for one in answer["findings"]))
