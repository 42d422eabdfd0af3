"""Flags and variables of the environment: checked, and laid over the `aws` settings."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from kiln import facts
from kiln.base import vocabulary
from kiln.base.account import SETTINGS, SUBNETS, Account, Aws, variables
from kiln.base.errors import KilnError
from kiln.base.vocabulary import masked, quoted

# No flag was given.
NOTHING: Mapping[str, str] = {}


def overridden(account: Account, flags: Mapping[str, str], arch: str) -> Account:
    """The settings of a row, with the environment's over them, and the flags' over those."""
    for settings in (list(_environment()), list(_typed(flags))):
        origins = [origin for origin, name, _ in settings if name in SUBNETS]
        if len(origins) > 1:
            raise KilnError(
                f"{' and '.join(origins)} both name the subnet", hint="leave one of the two out"
            )
        for origin, name, text in settings:
            block = _parsed(origin, name, text, arch)
            account = account.with_block(block, partial(_origin, origin), arch)
    for name, why in account.conflicts():
        all_origins = account.origins.items()
        origin = ", ".join(dict.fromkeys(at for k, at in all_origins if k.split(".")[0] == name))
        raise KilnError(f"{name} ({origin}): {why}", hint="leave one of the two out")
    if account.ssh_interface == "session_manager" and not account.iam_instance_profile:
        raise KilnError(
            f"ssh_interface session_manager ({account.origins['ssh_interface']}) needs an "
            "iam_instance_profile: without its role the instance cannot register",
            hint="docs/your-account.md shows how to make one",
        )
    return account


def records_bucket(account: Account, flags: Mapping[str, str]) -> str | None:
    """The bucket of records that flags, the environment or the settings name, for tasks that use
    no other setting."""
    name = "records_bucket"
    for origin, setting, text in (*_typed(flags), *_environment([name])):
        if setting == name:
            return _parsed(origin, name, text, "x86_64").records_bucket
    return account.records_bucket


def instance_type(flag: str, value: str | None) -> None:
    """Require that `value` can be an instance type, GPU or not."""
    if value is not None and not vocabulary.INSTANCE_TYPE.fits(value):
        shown = f"--{flag.replace('_', '-')} {value} is not an instance type such as g4dn.xlarge"
        try:
            facts.instance(value)
        except KilnError as error:
            raise KilnError(shown, hint=error.hint) from None


def ami(value: str) -> None:
    """Require that `value` can be an AMI's id."""
    vocabulary.AMI_ID.required(value, "--ami")


def region(value: str | None) -> None:
    """Require that `value` can be a region."""
    if value is not None:
        vocabulary.REGION.required(value, "--region")


def disk(value: str | None, *, own_kernel: bool) -> Path | None:
    """The file that `--disk` names, which must not exist."""
    if value is None:
        return None
    path = Path(value).absolute()
    if not own_kernel:
        raise KilnError("--disk keeps the disk that --own-kernel boots", hint="give both")
    if not path.parent.is_dir():
        raise KilnError(f"--disk {value}: there is no folder {path.parent}")
    if path.exists():
        raise KilnError(f"--disk {value} exists already", hint="remove it, or name another file")
    return path


def on_error(value: str) -> bool:
    """Whether --on-error keeps the build instance."""
    if value not in ("keep", "clean-up"):
        raise KilnError(f"--on-error {vocabulary.shown(value)} is neither keep nor clean-up")
    return value == "keep"


def _origin(origin: str, path: tuple[str, ...]) -> str:
    return origin


def _environment(names: Iterable[str] = SETTINGS) -> Iterator[tuple[str, str, str]]:
    """Variable, setting and text of each setting that the environment has."""
    for name in names:
        for variable in variables(name):
            if os.environ.get(variable):
                yield variable, name, os.environ[variable]
                break


def _typed(flags: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    """Flag, setting and text of each setting that was typed."""
    for name, text in flags.items():
        yield f"--{name.replace('_', '-')}", name, text


def _parsed(origin: str, name: str, text: str, arch: str) -> Aws:
    """The block that a setting's text means."""
    try:
        return Aws.model_validate({name: _data(name, text, arch)})
    except ValidationError as error:
        first: Any = error.errors()[0]
        why = first["msg"].removeprefix("Value error, ")
        if first["type"] != "value_error":
            why = f"{quoted(text)}: {why}"
        example = f"--{name.replace('_', '-')} {SETTINGS[name].example}"
        raise KilnError(f"{origin}: {masked(why)}", hint=f"its form: {example}") from None


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
