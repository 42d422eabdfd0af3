"""Flags: the rows that they choose, and the `aws` settings that they and the environment set."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kiln.base import vocabulary
from kiln.base.account import SETTINGS, Account, Aws, variables
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.recipe import Recipe
from kiln.base.vocabulary import masked, quoted
from kiln.matrix.load import unknown_component

# No flag was given.
NOTHING: Mapping[str, str] = {}
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
# Used only if the given flags match several rows.
_USUAL = {"flavor": "base", "arch": "x86_64"}


def select(recipes: Sequence[Recipe], *, every: bool = False, **wanted: str | None) -> list[Recipe]:
    """The recipes that match all given flags: exactly one, or with `every` any number.

    `driver` and `cuda` also match the beginning of a version: 510 or 510.47, 11 or 11.6. If several
    rows match, flavor base and arch x86_64 are preferred, and of one driver the row with the open
    kernel module, unless a flag says otherwise.
    If no row matches, the error names the nearest; if several do without `every`, it names them and
    the flags that distinguish them.
    """
    given = {name: value for name, value in wanted.items() if value is not None}
    flags = {name.replace("_", "-"): value for name, value in given.items()}
    for flag, value in flags.items():
        if not any(_fits(recipe, flag, value) for recipe in recipes):
            values = {_READS[flag](recipe) for recipe in recipes}
            raise KilnError(
                f"no row of the matrix has --{flag} {value}",
                hint=did_you_mean(value, values, listed_by="./invoke list"),
            )
    matches = [recipe for recipe in recipes if not _misses(recipe, flags)]
    shown = " ".join(f"--{flag} {value}" for flag, value in flags.items())
    if not matches:
        raise KilnError(f"no row of the matrix has {shown}", hint=_nearest(recipes, flags))
    everything = len(matches)
    if len(matches) > 1 and not every:
        matches = _usual(matches, flags)
    if len(matches) > 1 and not every:
        rows = "".join(f"\n  {recipe.name}" for recipe in matches)
        fitting = f"match {shown}" if flags else "match"
        if len(matches) < everything:
            fitting += f" (of {everything}; flavor base and x86_64 come first)"
        choices = [
            f"--{flag} {'|'.join(each)}"
            for flag, read in _READS.items()
            if flag != "name" and len(each := dict.fromkeys(map(read, matches))) == len(matches)
        ]
        choice = " or ".join(choices) or "--name with one of these names"
        hint = f"add {choice}; or --all for all of them"
        raise KilnError(f"{len(matches)} rows {fitting}:{rows}", hint=hint)
    return matches


def _usual(matches: list[Recipe], flags: Mapping[str, str]) -> list[Recipe]:
    """The rows with the default flavor, arch and kernel module; all rows if none has them."""
    for flag, value in _USUAL.items():
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
    return has == wanted or (flag in ("driver", "cuda") and has.startswith(f"{wanted}."))


def _misses(recipe: Recipe, flags: Mapping[str, str]) -> list[str]:
    return [flag for flag, wanted in flags.items() if not _fits(recipe, flag, wanted)]


def _nearest(recipes: Sequence[Recipe], flags: Mapping[str, str]) -> str:
    """The rows that match most flags, each with the flags that it does not match."""
    fewest = min(len(_misses(recipe, flags)) for recipe in recipes)
    lines = [
        f"\n    {recipe.name} ({', '.join(f'{flag} is {_READS[flag](recipe)}' for flag in misses)})"
        for recipe in recipes
        if len(misses := _misses(recipe, flags)) == fewest
    ]
    return "the nearest:" + "".join(lines)


# A setting → the flag or variable that gives it, and its text.
_Typed = dict[str, tuple[str, str]]


def overridden(account: Account, flags: Mapping[str, str], arch: str) -> Account:
    """The settings of a row, with the environment's over them, and the flags' over those."""
    for layer in (_environment(), _typed(flags)):
        account = _laid_over(account, layer, arch)
    for name, why in account.conflicts():
        all_origins = account.origins.items()
        origin = ", ".join(dict.fromkeys(at for k, at in all_origins if k.split(".")[0] == name))
        raise KilnError(f"{name} ({origin}): {why}", hint="leave one of the two out")
    for component in account.time_limits:
        if why := unknown_component(component):
            raise KilnError(f"{account.origins[f'time_limits.{component}']}: {why}")
    if account.ssh_interface == "session_manager" and not account.iam_instance_profile:
        raise KilnError(
            f"ssh_interface session_manager ({account.origins['ssh_interface']}) needs an "
            "iam_instance_profile: without its role the instance cannot register",
            hint="docs/your-account.md shows how to make one",
        )
    return account


def _laid_over(account: Account, given: _Typed, arch: str) -> Account:
    return account.with_block(_parsed(given, arch), lambda path: given[path[0]][0], arch)


def setting(name: str, account: Account, flags: Mapping[str, str]) -> Any:
    """One setting that flags, the environment or the account have, for tasks that use no other."""
    given = {**_environment(), **_typed(flags)}
    typed = _parsed({name: given[name]}, "x86_64") if name in given else account
    return getattr(typed, name)


def disk(value: str | None, *, own_kernel: bool) -> Path | None:
    """The file that `--disk` names, which must not exist."""
    if value is None:
        return None
    path = Path(value).absolute()
    if not own_kernel:
        raise KilnError("--disk requires --own-kernel")
    if path.exists() or not path.parent.is_dir():
        raise KilnError(f"--disk {value} must be a new file in a folder that exists")
    return path


def on_error(value: str) -> bool:
    """Return True if --on-error keeps the build instance."""
    if value not in ("keep", "clean-up"):
        raise KilnError(f"--on-error {vocabulary.shown(value)} is neither keep nor clean-up")
    return value == "keep"


def _environment() -> _Typed:
    """The settings in the environment: of several variables for one the first counts."""
    given = {}
    for name in SETTINGS:
        for variable in reversed(variables(name)):
            if text := os.environ.get(variable):
                given[name] = (variable, text)
    return given


def _typed(flags: Mapping[str, str]) -> _Typed:
    return {name: (f"--{name.replace('_', '-')}", text) for name, text in flags.items()}


def _parsed(given: _Typed, arch: str) -> Aws:
    """The block that the settings' texts mean."""
    try:
        return Aws.model_validate({name: _data(name, given[name][1], arch) for name in given})
    except ValidationError as error:
        first: Any = error.errors()[0]
        why = first["msg"].removeprefix("Value error, ")
        if not first["loc"]:  # two settings that do not fit together
            raise KilnError(f"{', '.join(origin for origin, _ in given.values())}: {why}") from None
        name = first["loc"][0]
        origin, text = given[name]
        if first["type"] == "dict_type":
            why = f"{quoted(text)} is not KEY=VALUE[,KEY=VALUE]"
        elif first["type"] != "value_error":
            why = f"{quoted(text)}: {why}"
        example = f"--{name.replace('_', '-')} {SETTINGS[name].example}"
        raise KilnError(f"{origin}: {masked(why)}", hint=f"example: {example}") from None


def _data(name: str, text: str, arch: str) -> Any:
    """A setting's text as amis.yaml would have it: a list or a mapping where that is one."""
    words = [word for part in text.split(SETTINGS[name].separator) if (word := part.strip())]
    if name == "instance_types":
        return {arch: words}
    default = Account.model_fields[name].default
    if isinstance(default, tuple):
        return words
    if name != "subnet_filter" and not isinstance(default, dict):
        return text
    pairs = {key.strip(): value.strip() for key, _, value in (w.partition("=") for w in words)}
    if len(pairs) < len(words) or not all("=" in word for word in words):
        return text  # not pairs, or a key twice: not a mapping
    return {"filters": pairs} if name == "subnet_filter" else pairs
