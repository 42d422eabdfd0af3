"""What flags and environment replace of the `aws` settings, and their form as text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any

from pydantic import ValidationError

from kiln.base.account import FORMS, REGION_VARIABLES, SETTINGS, Account
from kiln.base.errors import KilnError
from kiln.base.vocabulary import masked, quoted
from kiln.matrix.account import SUBNETS, Aws, layered, unfit
from kiln.matrix.violations import reason

# Setting → variables of the environment, of which the first that is set counts. boto3 reads those
# of the region, the preflight that of the mirrors.
VARIABLES = {
    "region": REGION_VARIABLES,
    "tags": ("KILN_AWS_TAGS",),
    "subnet_id": ("KILN_AWS_SUBNET_ID",),
    "subnet_ids": ("KILN_AWS_SUBNET_IDS",),
    "subnet_filter": ("KILN_AWS_SUBNET_FILTER",),
    "security_group_ids": ("KILN_AWS_SECURITY_GROUP_IDS",),
    "ssh_interface": ("KILN_AWS_SSH_INTERFACE",),
    "ssh_source_cidrs": ("KILN_AWS_SSH_SOURCE_CIDRS",),
    "kms_key_id": ("KILN_AWS_KMS_KEY_ID",),
    "iam_instance_profile": ("KILN_AWS_IAM_INSTANCE_PROFILE",),
    "instance_types": ("KILN_AWS_INSTANCE_TYPES",),
    "spot": ("KILN_AWS_SPOT",),
    "capacity_reservation_id": ("KILN_AWS_CAPACITY_RESERVATION_ID",),
    "proxy": ("KILN_AWS_PROXY",),
    "no_proxy": ("KILN_AWS_NO_PROXY",),
    "mirrors": ("KILN_MIRRORS",),
    "time_limits": ("KILN_AWS_TIME_LIMITS",),
    "records_bucket": ("KILN_AWS_RECORDS_BUCKET",),
}
# No flag was given.
NOTHING: Mapping[str, str] = {}
_YES, _NO = ("1", "true", "yes"), ("0", "false", "no")


def overridden(account: Account, flags: Mapping[str, str], arch: str) -> Account:
    """The settings of a row, with the environment's over them, and the flags' over those.

    Raises KilnError (exit status 2) naming the flag or variable whose text cannot be one, and for
    settings that do not fit together.
    """
    for settings in (list(_of_environment()), list(_of_flags(flags))):
        _require_one_subnet(settings)
    for origin, name, text in (*_of_environment(), *_of_flags(flags)):
        block = _read(origin, name, text, arch)
        account = layered(account, block, partial(_say, origin), arch)
    for name, why in unfit(account):
        origins = account.origins.items()
        origin = ", ".join(dict.fromkeys(at for key, at in origins if key.split(".")[0] == name))
        raise KilnError(f"{name} ({origin}): {why}", hint="leave one of the two out")
    if account.ssh_interface == "session_manager" and not account.iam_instance_profile:
        raise KilnError(
            f"ssh_interface session_manager ({account.origins['ssh_interface']}) needs an "
            "iam_instance_profile: without its role the instance cannot register",
            hint="docs/your-account.md shows how to make one",
        )
    return account


def _require_one_subnet(settings: Iterable[tuple[str, str, str]]) -> None:
    """Raises KilnError (exit status 2) if flags, or variables, name the subnet in several ways."""
    origins = [origin for origin, name, _ in settings if name in SUBNETS]
    if len(origins) > 1:
        raise KilnError(
            f"{' and '.join(origins)} both name the subnet", hint="leave one of the two out"
        )


def records_bucket(account: Account, flags: Mapping[str, str]) -> str | None:
    """The bucket of records that flags, the environment or the settings name, for tasks that use
    no other setting. Raises KilnError (exit status 2) for an invalid bucket name."""
    name = "records_bucket"
    for origin, setting, text in (*_of_flags(flags), *_of_environment((name,))):
        if setting == name:
            return _read(origin, name, text, "x86_64").records_bucket
    return account.records_bucket


def _say(origin: str, path: tuple[str, ...]) -> str:
    del path
    return origin


def _of_environment(names: Iterable[str] = SETTINGS) -> Iterator[tuple[str, str, str]]:
    for name in names:
        for variable in VARIABLES[name]:
            if os.environ.get(variable):
                yield variable, name, os.environ[variable]
                break


def _of_flags(flags: Mapping[str, str]) -> Iterator[tuple[str, str, str]]:
    for name, text in flags.items():
        yield f"--{name.replace('_', '-')}", name, text


def _read(origin: str, name: str, text: str, arch: str) -> Aws:
    """The block that a setting's text means. Raises KilnError (exit status 2)."""
    try:
        data = _PARSERS.get(name, _text_as_is)(text, arch)
    except ValueError as error:
        raise KilnError(f"{origin}: {masked(str(error))}") from None
    try:
        return Aws.model_validate({name: data})
    except ValidationError as error:
        problem: dict[str, Any] = dict(error.errors()[0])
        why = (
            f"{quoted(text)} is not allowed: one of {problem['ctx']['expected']}"
            if problem["type"] == "literal_error"
            else reason(problem, problem.get("input"))
        )
        form = f"its form: {FORMS[name]}" if name in FORMS else ""
        if problem["type"] == "dict_type":
            why = f"{quoted(text)} is not a list of pairs"
        raise KilnError(f"{origin}: {masked(why)}", hint=form) from None


def _text_as_is(text: str, arch: str) -> Any:
    del arch
    return text


def _switch(text: str, arch: str) -> Any:
    del arch
    word = text.lower()
    return True if word in _YES else False if word in _NO else text


def _list(text: str, arch: str) -> Any:
    del arch
    return _words(text.split(","))


def _types(text: str, arch: str) -> Any:
    return {arch: _words(text.split(","))}


def _pairs(text: str, arch: str) -> Any:
    del arch
    return _split(text.split(","))


def _filter(text: str, arch: str) -> Any:
    del arch
    return {"filters": _split(text.split(","))}


def _urls(text: str, arch: str) -> Any:
    del arch
    return _split(text.split())


def _words(parts: Iterable[str]) -> list[str]:
    return [word for part in parts if (word := part.strip())]


def _split(parts: Iterable[str]) -> Any:
    pairs = _words(parts)
    if not all("=" in pair for pair in pairs):
        return pairs  # not a mapping: the schema reports it
    mapping: dict[str, str] = {}
    for key, _, value in (pair.partition("=") for pair in pairs):
        if key.strip() in mapping:
            raise ValueError(f"{key.strip()} has two values; leave one of them out")
        mapping[key.strip()] = value.strip()
    return mapping


_PARSERS: dict[str, Callable[[str, str], Any]] = {
    "tags": _pairs,
    "subnet_filter": _filter,
    "subnet_ids": _list,
    "security_group_ids": _list,
    "ssh_source_cidrs": _list,
    "instance_types": _types,
    "spot": _switch,
    "no_proxy": _list,
    "mirrors": _urls,
    "time_limits": _pairs,
}
