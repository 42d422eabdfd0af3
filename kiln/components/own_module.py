"""A component of an overlay in Python, and what keeps its mistakes from being the program's.

Each function of the component is called through `_Module`: what it raises, and what it returns that
is of another type, is a KilnError (exit status 2) with the module's file and line. What it prints
goes to standard error, since standard output is the program's: with `--json` one document.
"""

from __future__ import annotations

import contextlib
import importlib.util
import re
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kiln import facts
from kiln.base.errors import KilnError, did_you_mean
from kiln.base.overlay import overlay_mistake
from kiln.base.recipe import Recipe
from kiln.components.component import Component, Download, Fact

VARIABLE = re.compile(r"[A-Z][A-Z0-9_]*")
_FILES = "files(recipe) must return paths on the image, each with its text"
_DOWNLOADS = "downloads(recipe) must return a tuple of Download(variable, URL)"
_ENVIRONMENT = "environment(recipe) must return the script's variables, all of text"


def from_module(path: Path, name: str) -> tuple[Component, str]:
    """The component of a module and after which one it is baked; its functions are guarded.

    Raises KilnError (exit status 2) with file and line for a module that is not such a one.
    """
    spec = importlib.util.spec_from_file_location(f"kiln_overlay_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise overlay_mistake(path, "Python cannot load it")
    loaded, own = importlib.util.module_from_spec(spec), _Module(path)
    sys.modules[spec.name] = loaded  # dataclasses look their module up there
    own.result(spec.loader.exec_module, loaded)
    component, after = getattr(loaded, "COMPONENT", None), getattr(loaded, "AFTER", None)
    if not isinstance(component, Component) or not isinstance(after, str):
        raise overlay_mistake(
            path, 'it needs COMPONENT = Component(…) and AFTER = "tuning" at its end'
        )
    if component.name != name:
        raise overlay_mistake(
            path, f"the file's name says {name}, its component {component.name!r}"
        )
    own.check_fields(component)
    wanted, serves = component.wanted, component.serves
    return (
        replace(
            component,
            wanted=wanted and (lambda stack: own.yes_or_no("wanted", wanted, stack)),
            serves=serves and (lambda arch: own.yes_or_no("serves", serves, arch)),
            environment=lambda recipe: own.environment(component, recipe),
            downloads=lambda recipe: own.downloads(component, recipe),
            files=lambda recipe: own.files(component, recipe),
        ),
        after,
    )


@dataclass(frozen=True)
class _Module:
    """The file of a component in Python."""

    path: Path

    def result(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """What a function of the module returns; an error in it names the module's line."""
        try:
            with contextlib.redirect_stdout(sys.stderr):
                return function(*arguments)
        except KilnError:
            raise
        except SyntaxError as error:
            raise overlay_mistake(
                self.path, f"not valid Python: {error.msg}", line=error.lineno or 1
            ) from None
        # sys.exit() in a module would end the program without a word.
        except (Exception, SystemExit) as error:
            frames = traceback.extract_tb(error.__traceback__)
            lines = [frame.lineno for frame in frames if frame.filename == str(self.path)]
            what = f"{type(error).__name__}: {error}"
            raise self._mistake(what, lines[-1] if lines else None) from None

    def check_fields(self, component: Component) -> None:
        """Refuse a field of another type than the component's class says."""
        texts = ("needs", "version_field")
        functions = ("environment", "downloads", "files")
        right = {
            "what": (
                isinstance(component.what, str)
                and component.what.isprintable()
                and component.what.strip() != "",
                "one line of text",
            ),
            **{
                name: (isinstance(getattr(component, name), str | None), "a field of the recipe")
                for name in texts
            },
            **{
                name: (isinstance(getattr(component, name), bool), "True or False")
                for name in ("optional", "reboots")
            },
            **{
                name: (
                    getattr(component, name) is None or callable(getattr(component, name)),
                    "a function",
                )
                for name in ("wanted", "serves")
            },
            **{name: (callable(getattr(component, name)), "a function") for name in functions},
            "keys": (_is_texts(component.keys), "variables, each with the name of a signing key"),
        }
        for name, (fits, words) in right.items():
            if not fits:
                value = getattr(component, name)
                raise self._mistake(f"{name}={value!r}: {name} must be {words}")
        keys = facts.table("keys")["keys"]
        for key in component.keys.values():
            if key not in keys:
                raise self._mistake(
                    f"there is no signing key {key!r}", hint=did_you_mean(key, keys)
                )

    def yes_or_no(self, name: str, function: Callable[[Any], Any], argument: Any) -> bool:
        """What `wanted` or `serves` says, as an `if` takes it."""
        return bool(self.result(lambda: bool(function(argument))))

    def environment(self, component: Component, recipe: Recipe) -> dict[str, str | Fact]:
        """The script's variables."""
        function = component.environment
        values = self.result(lambda: _plain(function(recipe)))
        if not isinstance(values, dict) or not all(
            isinstance(text, str | Fact) for text in values.values()
        ):
            raise self._mistake(_ENVIRONMENT, self._line(function))
        for variable in values:
            self._check_variable(variable, self._line(function))
        return values

    def downloads(self, component: Component, recipe: Recipe) -> tuple[Download, ...]:
        """The files that the script fetches."""
        function = component.downloads
        values = self.result(lambda: _plain(function(recipe)))
        if not isinstance(values, list) or not all(
            isinstance(each, Download)
            and isinstance(each.url, str)
            and isinstance(each.version, str)
            and isinstance(each.row, facts.UsedRow | None)
            for each in values
        ):
            raise self._mistake(_DOWNLOADS, self._line(function))
        for each in values:
            self._check_variable(each.env, self._line(function))
        return tuple(values)

    def files(self, component: Component, recipe: Recipe) -> dict[str, str]:
        """The files that kiln_install_files puts on the image."""
        function = component.files
        values = self.result(lambda: _plain(function(recipe)))
        if not isinstance(values, dict) or not _is_texts(values):
            raise self._mistake(_FILES, self._line(function))
        for name in values:
            if problem := name_problem(name):
                what = f"files(recipe) names {name!r}, {problem}"
                hint = "write it as below /, such as etc/acme/banner"
                raise self._mistake(what, self._line(function), hint)
        return values

    def _check_variable(self, name: Any, line: int | None) -> None:
        if not isinstance(name, str) or not VARIABLE.fullmatch(name):
            raise self._mistake(f"{name!r} is not a variable such as ACME_SITE", line)

    def _line(self, function: Callable[..., Any]) -> int | None:
        """Where a function begins; a helper of another file has no line here."""
        code = getattr(function, "__code__", None)
        return code.co_firstlineno if code and code.co_filename == str(self.path) else None

    def _mistake(self, message: str, line: int | None = None, hint: str = "") -> KilnError:
        return overlay_mistake(self.path, message, hint, line)


def name_problem(name: str) -> str:
    """Why a file of the image cannot have this name below files/; empty if it can."""
    if not name or not name.isprintable():
        return "which is empty or cannot be printed"
    if name.startswith("/"):
        return "which begins with /"
    if any(part in ("", ".", "..") for part in name.split("/")):
        return "which has an empty part, . or .."
    return ""


def _plain(value: Any) -> Any:
    """A mapping or a sequence as a dict or a list of its own: reading it may fail, too."""
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple | list) else value


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(part, str) and _is_utf_8(part) for pair in value.items() for part in pair
    )


def _is_utf_8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
