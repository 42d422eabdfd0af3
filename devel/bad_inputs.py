"""The corpus of bad inputs: each file of `tests/bad_inputs/` is one command and how it must end.

A case is YAML:

    what:     one line for the reader
    files:    name → text, or how to make it (see `_content`); they are in the case's own folder
    command:  the arguments of ./invoke; `{folder}` is the case's folder
    env:      variables of the environment, besides a bare one
    stdin:    text
    exit:     the exit status, 2 if it is left out
    words:    texts that the output must have

Whatever the input: no traceback, and no control character reaches the terminal. The commands run
in this process, one after another.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest import mock

from kiln.base import plain_yaml
from kiln.base.paths import ROOT
from kiln.base.printable import printable

CASES = ROOT / "tests" / "bad_inputs"
BASE = CASES / "base"
_KEYS = {"what", "files", "command", "env", "stdin", "exit", "words"}
# Where a case's files take the place of the checkout's.
_PLACES = {"KILN_MATRIX": "amis.yaml", "KILN_LOCK": "amis.lock.yaml"}


@dataclass(frozen=True)
class Case:
    """One bad input; `name` is its file's path in the corpus without the suffix."""

    name: str
    what: str
    command: tuple[str, ...]
    files: Mapping[str, Any] = field(default_factory=dict)
    env: Mapping[str, str] = field(default_factory=dict)
    stdin: str = ""
    exit: int = 2
    words: tuple[str, ...] = ()


@dataclass(frozen=True)
class Result:
    """How a case ended; `wrong` is empty if it ended as it must."""

    case: Case
    status: int | None
    output: str
    traceback: str
    wrong: str


def cases() -> list[Case]:
    """Every case of the corpus, by name. Raises KilnError or ValueError for a malformed file."""
    all_cases = []
    for path in sorted(CASES.rglob("*.yaml")):
        if BASE in path.parents:
            continue
        data = plain_yaml.read_plain(path)
        name = path.relative_to(CASES).with_suffix("").as_posix()
        if unknown := data.keys() - _KEYS:
            raise ValueError(f"{path}: unknown keys {sorted(unknown)}")
        lists = {key: tuple(map(str, data.get(key, ()))) for key in ("command", "words")}
        all_cases.append(Case(name=name, **{**data, **lists}))
    return all_cases


def run(case: Case) -> Result:
    """Run a case in a folder of its own."""
    with tempfile.TemporaryDirectory(prefix="kiln-bad-input-") as folder:
        for name, content in case.files.items():
            _write(Path(folder) / name, content)
        command = [word.replace("{folder}", folder) for word in case.command]
        return _judged(case, *_invoked(command, environment_of(case, folder), case.stdin), folder)


def environment_of(case: Case, folder: str) -> dict[str, str]:
    """A bare environment: no AWS configuration, no lab, the case's files."""
    own = {name: f"{folder}/{file}" for name, file in _PLACES.items() if file in case.files}
    return {
        "PATH": os.environ.get("PATH", ""),
        "HOME": folder,
        "TERM": "dumb",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_CONFIG_FILE": f"{folder}/aws/config",
        "AWS_SHARED_CREDENTIALS_FILE": f"{folder}/aws/credentials",
        "KILN_BUILD_DIR": f"{folder}/build",
        "KILN_PACKER_DIR": f"{folder}/packer",
        "KILN_LAB_STATE": f"{folder}/lab",
        **own,
        **{name: value.replace("{folder}", folder) for name, value in case.env.items()},
    }


def _invoked(
    command: Sequence[str], environment: dict[str, str], stdin: str
) -> tuple[int | None, str, str]:
    """Exit status, output and traceback of `./invoke` with these arguments."""
    from kiln.cli import front

    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors="replace", write_through=True)
    stream = io.TextIOWrapper(io.BytesIO(stdin.encode("utf-8", "surrogateescape")))
    argv = ["./invoke", "--search-root", str(ROOT), *command]
    status: int | None = None
    crash = ""
    with (
        mock.patch.dict(os.environ, environment, clear=True),
        mock.patch.object(sys, "stdin", stream),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(out),
    ):
        try:
            status = front.run(argv)
        except SystemExit as end:
            status = end.code if isinstance(end.code, int) else 1
        except BaseException:
            crash = traceback.format_exc()
    out.flush()
    return status, out.buffer.getvalue().decode("utf-8", "replace"), crash


def _judged(case: Case, status: int | None, output: str, crash: str, folder: str) -> Result:
    wrong = ""
    if not crash and "Traceback (most recent call last)" in output:
        crash = output
    missing = [word for word in case.words if word not in output.replace(folder, "{folder}")]
    if crash:
        wrong = "a traceback"
    elif status != case.exit:
        wrong = f"exit status {status}, not {case.exit}: {output[-600:]}"
    elif missing:
        wrong = f"the output lacks {missing}: {output[-600:]}"
    elif printable(output) != output:
        wrong = f"a control character in the output: {output[-600:]!r}"
    return Result(case, status, output, crash, wrong)


def _write(path: Path, content: Any) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(content, Mapping) and content.get("folder"):
        path.mkdir()
        return
    if isinstance(content, Mapping) and "link" in content:
        path.symlink_to(content["link"])
        return
    path.write_bytes(_content(content))
    if isinstance(content, Mapping) and "mode" in content:
        path.chmod(int(str(content["mode"]), 8))


def _content(content: Any) -> bytes:
    """The bytes of a file: text as it is, or a mapping that makes it from parts.

    from:    a file of `base/`; then `replace` ([old, new] pairs, each must occur), `append`;
             of JSON: `set` (path → value; a path is keys with dots), `delete` (paths)
    repeat:  [text, how often, text after it]
    hex:     bytes
    """
    if isinstance(content, str):
        return content.encode("utf-8", "surrogateescape")
    if "hex" in content:
        return bytes.fromhex(str(content["hex"]))
    if "repeat" in content:
        return "".join(_repeated(content["repeat"])).encode()
    text = (BASE / content["from"]).read_text(encoding="utf-8")
    for old, new in content.get("replace", ()):
        if old not in text:
            raise ValueError(f"{content['from']} has no {old!r}")
        text = text.replace(old, _text(new))
    if {"set", "delete"} & content.keys():
        data = json.loads(text)
        for where, value in content.get("set", {}).items():
            *path, last = where.split(".")
            _at(data, path)[_key(last)] = _value(value)
        for where in content.get("delete", ()):
            *path, last = where.split(".")
            del _at(data, path)[_key(last)]
        text = json.dumps(data)
    whole: str = text + _text(content.get("append", ""))
    return whole.encode("utf-8", "surrogateescape")


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(_repeated(content["repeat"]))


def _value(content: Any) -> Any:
    """A JSON value; {repeat: …} is text."""
    if isinstance(content, Mapping) and "repeat" in content:
        return _text(content)
    if isinstance(content, Mapping):
        return {key: _value(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_value(value) for value in content]
    return content


def _repeated(parts: Sequence[Any]) -> Iterator[str]:
    """[text, times, text, times …]: a text without a number is there once."""
    for index, part in enumerate(parts):
        if isinstance(part, str):
            following = parts[index + 1] if index + 1 < len(parts) else 1
            yield part * (following if isinstance(following, int) else 1)


def _at(data: Any, path: Sequence[str]) -> Any:
    for part in path:
        data = data[_key(part)]
    return data


def _key(part: str) -> str | int:
    return int(part) if part.isdigit() else part
