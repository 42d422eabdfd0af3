"""Declare a task: its flags are a function's parameters, their help is in its docstring.

A docstring has a summary of one line, examples (lines that start with `./invoke`), and a line
`flag: help` for each flag, below a title where flags belong together. A parameter whose type is a
`Flags` class stands for all flags of that class.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable
from typing import Any, get_origin

from invoke import Collection, Context, Exit, Task

from kiln.base.errors import KilnError
from kiln.cli.output import FORMAT

GROUPS = ("Matrix", "Build", "Release", "Launch", "Telemetry", "GPU tools", "Lab", "Develop")
Body = Callable[..., "int | None"]
# Flags that mean the same in several tasks: flag → the title that it stands below, its help.
_COMMON = {
    "instance_type": ("Flags", "EC2 GPU instance type: --instance-type p4d.24xlarge"),
    "line": ("Flags", "line: --line al2023/lts/base/x86_64 (./invoke channels)"),
    "no_install": ("Flags", "do not install system packages; fail if any is missing"),
    "why": ("Flags", "reason, for the history: --why 'CVE-2026-1234'"),
    "json": ("Output", "print JSON, errors included"),
}


class Flags:
    """Flags that several tasks share: the parameters of a class with a docstring like a task's,
    whose summary is the title of all of them."""


class Doc:
    """Content of a docstring: summary, examples and the help of flags."""

    def __init__(self, documented: Any) -> None:
        self.summary, *lines = inspect.cleandoc(documented.__doc__ or "").splitlines()
        self.examples = [line for line in lines if line.startswith("./invoke")]
        self.helps: dict[str, tuple[str, str]] = {}
        title, name = self.summary if isinstance(documented, type) else "Flags", ""
        for line in lines:
            if match := re.fullmatch(r"([A-Z][\w ]+):", line):
                title = match[1]
            elif match := re.fullmatch(r"(\w+): (.*)", line):
                name = match[1]
                self.helps[name] = (title, match[2])
            elif line.startswith("  "):
                self.helps[name] = (title, f"{self.helps[name][1]} {line.strip()}")

    def titles(self) -> dict[str, list[str]]:
        """Each title and its flags, those of the output last."""
        found: dict[str, list[str]] = {}
        for name, (title, _) in sorted(self.helps.items(), key=lambda each: each[1][0] == "Output"):
            found.setdefault(title, []).append(name)
        return found


class KilnTask(Task[Any]):
    """An Invoke task with a group for `--list` and titles for `--help`."""

    group: str
    doc: Doc


def task(group: str, name: str | None = None) -> Callable[[Body], KilnTask]:
    """Make a function a task of a group. Its result is the exit status, None is 0."""

    def wrap(body: Body) -> KilnTask:
        doc, helps = Doc(body), dict(_COMMON)
        shared: dict[str, type[Flags]] = {}
        parameters: list[inspect.Parameter] = []
        for each in _parameters(body):
            if isinstance(each.annotation, type) and issubclass(each.annotation, Flags):
                shared[each.name] = each.annotation
                helps |= Doc(each.annotation).helps
                parameters += _parameters(each.annotation)
            else:
                parameters.append(each)
        parameters.append(inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=False))
        lists = [each.name for each in parameters if get_origin(each.annotation) is list]
        defaults = {each.name: each.default for each in parameters} | dict.fromkeys(lists)

        @functools.wraps(body)
        def run(context: Context, **values: Any) -> None:
            FORMAT.json = values.pop("json", False)
            for its_name, value in values.items():
                # In a script, a variable that is not set.
                if isinstance(value, str) and not value.strip() and value != defaults[its_name]:
                    raise KilnError(f"{flag(its_name)} is empty: give it a value, or leave it out")
            for its_name, kind in shared.items():
                names = [each.name for each in _parameters(kind) if each.name in values]
                values[its_name] = kind(**{each: values.pop(each) for each in names})
            if status := body(**values):
                raise Exit(code=status)

        first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_ONLY)
        own = [
            inspect.Parameter(its_name, inspect.Parameter.KEYWORD_ONLY, default=default)
            for its_name, default in defaults.items()
        ]
        run.__signature__ = inspect.Signature([first, *own])  # type: ignore[attr-defined]
        doc.helps = {its_name: (helps | doc.helps)[its_name] for its_name in defaults}
        texts = {its_name: text for its_name, (_, text) in doc.helps.items()}
        made = KilnTask(run, name=name, help=texts, iterable=lists, auto_shortflags=False)
        made.group, made.doc = group, doc
        return made

    return wrap


def _parameters(taking: Any) -> list[inspect.Parameter]:
    return list(inspect.signature(taking, eval_str=True).parameters.values())


def flag(name: str) -> str:
    """Return the flag of a parameter: --instance-type, -k."""
    return ("-" if len(name) == 1 else "--") + name.strip("_").replace("_", "-")


class Tasks(Collection):
    """Tasks whose names may have a dot: a collection of Invoke cannot be a task as well."""

    def task_with_config(self, name: str | None) -> tuple[Any, dict[str, Any]]:
        """Return the task; no task has a configuration."""
        return self.tasks[name], {}
