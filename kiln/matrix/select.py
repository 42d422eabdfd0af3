"""Flags → the matching rows of the matrix."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from kiln.base.errors import KilnError, did_you_mean
from kiln.base.recipe import Recipe

Flags = dict[str, str]

# The field that each flag compares, in the order in which the flags distinguish rows best.
_READS: dict[str, Callable[[Recipe], str]] = {
    "name": lambda recipe: recipe.name,
    "distro": lambda recipe: recipe.distro.id,
    "driver": lambda recipe: recipe.driver,
    "cuda": lambda recipe: recipe.cuda or "none",
    "kernel-module": lambda recipe: recipe.kernel_module,
    "flavor": lambda recipe: recipe.flavor,
    "arch": lambda recipe: recipe.arch,
}
_VERSIONS = {"driver", "cuda"}
# Defaults, used only if the given flags match several rows.
USUAL = {"flavor": "base", "arch": "x86_64"}


def select(
    recipes: Sequence[Recipe],
    *,
    name: str | None = None,
    distro: str | None = None,
    driver: str | None = None,
    cuda: str | None = None,
    kernel_module: str | None = None,
    flavor: str | None = None,
    arch: str | None = None,
    every: bool = False,
) -> list[Recipe]:
    """The recipes that match all given flags: exactly one, or with `every` any number.

    `driver` and `cuda` also match the beginning of a version: 510 or 510.47, 11 or 11.6. If several
    rows match, flavor base and arch x86_64 are preferred, and of one driver the row with the open
    kernel module, unless a flag says otherwise.
    If no row matches, the error names the nearest; if several do without `every`, it names them and
    the flags that distinguish them.
    """
    criteria = {
        "name": name,
        "distro": distro,
        "driver": driver,
        "cuda": cuda,
        "kernel-module": kernel_module,
        "flavor": flavor,
        "arch": arch,
    }
    flags = {flag: str(value) for flag, value in criteria.items() if value is not None}
    for flag, wanted in flags.items():
        if not any(_fits(recipe, flag, wanted) for recipe in recipes):
            values = {_READS[flag](recipe) for recipe in recipes}
            raise KilnError(
                f"no row of the matrix has --{flag} {wanted}", hint=did_you_mean(wanted, values)
            )
    matches = [r for r in recipes if all(_fits(r, flag, wanted) for flag, wanted in flags.items())]
    if not matches:
        raise KilnError(f"no row of the matrix has {_shown(flags)}", hint=_nearest(recipes, flags))
    if len(matches) > 1 and not every:
        matches = _usual(matches, flags)
    if len(matches) > 1 and not every:
        rows = "".join(f"\n  {recipe.name}" for recipe in matches)
        fitting = f"match {_shown(flags)}" if flags else "are in the matrix"
        raise KilnError(f"{len(matches)} rows {fitting}:{rows}", hint=_apart(matches))
    return matches


def _usual(matches: list[Recipe], flags: Flags) -> list[Recipe]:
    """The rows with the default flavor, arch and kernel module; all rows if none has them."""
    for flag, value in USUAL.items():
        if flag not in flags:
            matches = [recipe for recipe in matches if _fits(recipe, flag, value)] or matches
    if "kernel-module" in flags:
        return matches
    with_open_module = {(r.distro.id, r.driver) for r in matches if r.kernel_module == "open"}
    return [
        recipe
        for recipe in matches
        if recipe.kernel_module == "open"
        or (recipe.distro.id, recipe.driver) not in with_open_module
    ]


def _fits(recipe: Recipe, flag: str, wanted: str) -> bool:
    has = _READS[flag](recipe)
    return has == wanted or (flag in _VERSIONS and has.startswith(f"{wanted}."))


def _nearest(recipes: Sequence[Recipe], flags: Flags) -> str:
    """The rows that match most flags, each with the flags that it does not match."""

    def misses(recipe: Recipe) -> list[str]:
        return [flag for flag, wanted in flags.items() if not _fits(recipe, flag, wanted)]

    fewest = min(len(misses(recipe)) for recipe in recipes)
    near = [recipe for recipe in recipes if len(misses(recipe)) == fewest]
    lines = [
        f"\n    {recipe.name} ({', '.join(f'{f} is {_READS[f](recipe)}' for f in misses(recipe))})"
        for recipe in near
    ]
    return "the nearest:" + "".join(lines)


def _apart(matches: Sequence[Recipe]) -> str:
    """The flags that distinguish the rows, with their values; otherwise --name."""
    choices = [
        f"--{flag} {'|'.join(values)}"
        for flag in ("distro", "driver", "cuda", "kernel-module", "flavor", "arch")
        if len(values := list(dict.fromkeys(_READS[flag](recipe) for recipe in matches)))
        == len(matches)
    ]
    choice = " or ".join(choices) or "--name with one of these names"
    return f"say which: {choice}; or --all for all of them"


def _shown(flags: Flags) -> str:
    return " ".join(f"--{flag} {value}" for flag, value in flags.items())
