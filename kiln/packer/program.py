"""The Packer program: finds it, and runs it so that it can always clean up after itself."""

from __future__ import annotations

import json
import os
import queue
import re
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from kiln.base import plain_yaml
from kiln.base.errors import operation_failed
from kiln.base.paths import KNOWLEDGE
from kiln.base.stopping import Stop
from kiln.packer.output import Event, parse_event, read_manifest

__all__ = [
    "FOLDER_1_6",
    "BuildResult",
    "Event",
    "Packer",
    "badly_formatted",
    "command",
    "described",
    "find_packer",
    "install_plugins",
    "installed_plugins",
    "look_ahead",
    "packer_facts",
    "packer_validate",
    "packer_values",
    "run_build",
]

Version = tuple[int, int, int]
WHOLE_FOLDER = "."
FOLDER_1_6 = "packer-1.6"

# The values that `validate` uses for variables without a default.
EXAMPLE_VARIABLES: dict[str, Any] = {
    "source_ami": "ami-00000000000000000",
    "ssh_source_cidrs": ["192.0.2.1/32"],
}


@dataclass(frozen=True)
class Packer:
    """A usable Packer binary."""

    path: Path
    version: Version

    @property
    def has_plugins(self) -> bool:
        """Does it load builders as plugins (1.7 and newer), and read the whole folder?"""
        return self.version >= _version(packer_facts()["plugins_from"])

    @property
    def template(self) -> str:
        """The path that it reads, relative to an AMI's folder."""
        return WHOLE_FOLDER if self.has_plugins else FOLDER_1_6

    def __str__(self) -> str:
        return f"Packer {'.'.join(map(str, self.version))} ({self.path})"


_VERSIONS = ThreadPoolExecutor(2)
_asked: dict[Path, Future[Version | None]] = {}


@dataclass(frozen=True)
class BuildResult:
    """The result of a build. `amis` maps region to AMI id; `errors` are Packer's error lines."""

    exit_status: int
    amis: dict[str, str]
    errors: tuple[str, ...]
    interrupted: bool

    @property
    def cut_short(self) -> bool:
        """Whether Packer was killed: what it was asking EC2 for may appear after it."""
        return self.exit_status == -signal.SIGKILL


@cache
def packer_facts() -> dict[str, Any]:
    """`knowledge/packer.yaml`: versions and the plugin."""
    data: dict[str, Any] = plain_yaml.read_plain(KNOWLEDGE / "packer.yaml")
    return data


def look_ahead() -> None:
    """Begin to ask the programs that `find_packer` may find for their versions: two starts of
    Packer, which need not be waited for."""
    for path in _candidates():
        _asked[path] = _VERSIONS.submit(_version_of, path)


def find_packer() -> Packer:
    """The first HashiCorp Packer on PATH, or the binary that `KILN_PACKER` names.

    Raises KilnError (exit status 1) if there is none, or if it is too old.
    """
    named = os.environ.get("KILN_PACKER")
    others = []
    for path in _candidates():
        asked = _asked.pop(path, None)
        version = asked.result() if asked else _version_of(path)
        if version is None:
            others.append(path)
        elif version < _version(packer_facts()["minimum"]):
            raise operation_failed(
                f"Packer {'.'.join(map(str, version))} at {path} is too old",
                hint=f"AMI Kiln needs {packer_facts()['minimum']} or newer: {_how_to_install()}",
            )
        else:
            return Packer(path, version)
    if others:
        raise operation_failed(
            f"{', '.join(map(str, others))} is not HashiCorp's Packer"
            + (" (cracklib has a program of that name)" if not named else ""),
            hint=f"{_how_to_install()}, or set KILN_PACKER to its path",
        )
    raise operation_failed("there is no packer on PATH", hint=_how_to_install())


def command(
    packer: Packer,
    verb: str,
    *,
    variables: Mapping[str, Any] | None = None,
    var_files: Sequence[Path] = (),
    flags: Sequence[str] = (),
) -> list[str]:
    """The command line of `packer build` or `packer validate`, to be run in an AMI's folder.

    Lists, maps and booleans in `variables` are written in Packer's syntax.
    """
    argv = [str(packer.path), verb, *flags]
    argv += [f"-var-file={path}" for path in var_files]
    for name, value in (variables or {}).items():
        argv += ["-var", f"{name}={value if isinstance(value, str) else json.dumps(value)}"]
    return [*argv, packer.template]


def install_plugins(packer: Packer, folder: Path) -> str:
    """Install the plugin in plugins.pkr.hcl, unless the builders are compiled into Packer.

    Returns the version of the plugin that Packer will use; empty where the builders are compiled
    in. Raises KilnError (exit status 1) if none that fits is there or can be had.
    """
    if not packer.has_plugins:
        return ""
    done = _run([str(packer.path), "init", "."], folder)
    installed = installed_plugins(packer)
    fitting = [version for version in installed if _fits(version)]
    if done.returncode or not fitting:
        plugin = packer_facts()["plugin"]
        listed = ", ".join(installed) or "none"
        raise operation_failed(
            f"{packer} has no plugin amazon that fits: wanted is >= {plugin['floor']}, "
            f"< {plugin['ceiling']}, installed: {listed}; it could not fetch one: "
            f"{_last_words(done)}",
            hint="`packer init .` downloads from github.com/hashicorp. Without a way there, fetch "
            "packer-plugin-amazon's release for this machine elsewhere, and: packer plugins "
            f"install --path FILE {plugin['source']}",
        )
    return fitting[-1]


def described(packer: Packer) -> str:
    """Packer with the amazon plugin that it uses, if it loads one, for the record."""
    if not packer.has_plugins:
        return str(packer)
    fitting = [version for version in installed_plugins(packer) if _fits(version)]
    return f"{packer}, plugin amazon {fitting[-1] if fitting else 'not installed'}"


def installed_plugins(packer: Packer) -> list[str]:
    """The versions of the amazon plugin that Packer finds on this machine, oldest first."""
    done = _run([str(packer.path), "plugins", "installed"], Path.cwd())
    versions = re.findall(r"packer-plugin-amazon_v(\d+\.\d+\.\d+)_", done.stdout)
    return [
        ".".join(map(str, version)) for version in sorted({_version(text) for text in versions})
    ]


def _fits(version: str) -> bool:
    plugin = packer_facts()["plugin"]
    return _version(plugin["floor"]) <= _version(version) < _version(plugin["ceiling"])


def packer_validate(packer: Packer, folder: Path) -> str:
    """The complaint of `packer validate` about the HCL in `folder`; empty if it is valid."""
    done = _run(command(packer, "validate", variables=EXAMPLE_VARIABLES), folder)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def packer_values(packer: Packer, folder: Path, names: Sequence[str]) -> str:
    """The complaint of `packer console` about these locals of a folder; empty if all have values.

    It reads the whole folder and starts no plugin, which is nearly all of what a validation costs.
    """
    expression = f"jsonencode([{', '.join(f'local.{name}' for name in names)}])\n"
    done = _run(command(packer, "console", variables=EXAMPLE_VARIABLES), folder, text=expression)
    return "" if done.returncode == 0 else (done.stdout + done.stderr).strip()


def badly_formatted(packer: Packer, files: Sequence[Path]) -> list[Path]:
    """The HCL files that `packer fmt` would change."""
    # packer fmt takes one file or one folder without subfolders, so copy all files into one.
    with tempfile.TemporaryDirectory(prefix="kiln-fmt-") as copies:
        for number, file in enumerate(files):
            shutil.copyfile(file, Path(copies, f"{number}.pkr.hcl"))
        done = _run([str(packer.path), "fmt", "-check", "."], Path(copies))
        numbers = re.findall(r"(\d+)\.pkr\.hcl$", done.stdout, re.MULTILINE)
    return [files[int(number)] for number in sorted(set(numbers), key=int)]


def run_build(
    packer: Packer,
    folder: Path,
    *,
    log: Path,
    manifest: Path,
    variables: Mapping[str, Any],
    var_files: Sequence[Path] = (),
    on_event: Callable[[Event], None] = lambda event: None,
    stop: Stop | None = None,
    environment: Mapping[str, str] | None = None,
    on_error: str = "cleanup",
) -> BuildResult:
    """Run `packer build` in `folder`; call `on_event` for each line, and write all lines to `log`.

    When `stop` is set, Packer gets one SIGTERM and `stop.grace` seconds to remove its resources, or
    less if a person asks again; the result is then `interrupted`. `environment` replaces the
    process's own; `on_error` goes to Packer.
    """
    stop = stop or Stop()
    manifest = manifest.resolve()
    manifest.unlink(missing_ok=True)
    # Relative to the folder that Packer runs in: it reads {{ in a path as a template.
    argv = command(
        packer,
        "build",
        variables={**variables, "manifest": os.path.relpath(manifest, folder.resolve())},
        var_files=[Path(os.path.relpath(path.resolve(), folder.resolve())) for path in var_files],
        flags=["-machine-readable", f"-on-error={on_error}"],
    )
    errors: list[str] = []
    ended: list[int] = []
    log.parent.mkdir(parents=True, exist_ok=True)
    events = _events(argv, folder, environment, stop, ended)
    with log.open("w", encoding="utf-8", buffering=1) as kept, closing(events):
        for event in events:
            if event.kind in {"say", "message", "error"}:
                kept.write(
                    f"{time.strftime('%H:%M:%S', time.gmtime(event.seconds))} {event.text}\n"
                )
            if event.kind == "error":
                errors.append(event.text)
            on_event(event)
    return BuildResult(ended[0], read_manifest(manifest), tuple(errors), stop.is_set())


def _events(
    argv: list[str],
    folder: Path,
    environment: Mapping[str, str] | None,
    stop: Stop,
    ended: list[int],
) -> Generator[Event, None, None]:
    """Run Packer and yield its lines; its exit status is appended to `ended`."""
    # In its own session, since the terminal's Ctrl-C besides our signal would make Packer exit
    # without cleaning up. The signal is SIGTERM because the first Packer process is only a wrapper,
    # which forwards SIGTERM but ignores SIGINT.
    process = subprocess.Popen(
        argv,
        cwd=folder,
        env=_environment(environment),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        encoding="utf-8",
        errors="replace",
        start_new_session=True,
    )
    lines: queue.Queue[str | None] = queue.Queue()
    reader = threading.Thread(target=_read, args=(process, lines), daemon=True)
    reader.start()
    signalled = None
    again = 0
    closed = False  # its output, which ends with it
    try:
        while True:
            if stop.is_set() and signalled is None:
                again = stop.again
                process.send_signal(signal.SIGTERM)
                signalled = time.monotonic()
            # The grace may become shorter meanwhile, when Packer waits for what cannot come.
            late = signalled is not None and time.monotonic() > signalled + stop.grace
            if signalled is not None and (late or stop.again > again):
                break
            try:
                line = lines.get(timeout=0.1)
            except queue.Empty:
                continue
            if line is None:
                closed = True
                break
            yield parse_event(line) or Event(int(time.time()), "message", line.rstrip("\n"))
    finally:
        ended.append(process.wait() if closed else _end(process, signalled=signalled is not None))


def _end(process: subprocess.Popen[str], *, signalled: bool) -> int:
    """Kill Packer and its plugins when their time is up.

    Returns its exit status: that of a killed program if its time was up.
    """
    if process.poll() is None:
        # After an error in `on_event`: let Packer still clean up. At the deadline it had its time.
        process.send_signal(signal.SIGTERM)
        try:
            ended = process.wait(timeout=1 if signalled else 60)
            return -signal.SIGKILL if signalled else ended
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
    return process.wait()


def _read(process: subprocess.Popen[str], lines: queue.Queue[str | None]) -> None:
    assert process.stdout is not None  # noqa: S101 - it is a pipe
    for line in process.stdout:
        lines.put(line)
    lines.put(None)


def _run(
    argv: list[str],
    folder: Path,
    environment: Mapping[str, str] | None = None,
    text: str = "",
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        cwd=folder,
        env=_environment(environment),
        input=text,
        capture_output=True,
        text=True,
        check=False,
    )


def _environment(given: Mapping[str, str] | None) -> dict[str, str]:
    # No call to HashiCorp's version check, no colours in parsed output.
    return {**(os.environ if given is None else given), "CHECKPOINT_DISABLE": "1", "NO_COLOR": "1"}


def _candidates() -> list[Path]:
    named = os.environ.get("KILN_PACKER")
    # Packer runs in the folder of its HCL.
    return [Path(named).absolute()] if named else _on_path("packer")


def _on_path(name: str) -> list[Path]:
    programs: dict[Path, Path] = {}
    for folder in os.environ.get("PATH", os.defpath).split(os.pathsep):
        path = shutil.which(name, path=folder or os.curdir)
        if path:
            programs.setdefault(Path(path).resolve(), Path(path))
    return list(programs.values())


def _version_of(path: Path) -> Version | None:
    """The version of HashiCorp's Packer; None if the binary is something else."""
    try:
        done = subprocess.run(
            [str(path), "version"],
            env=_environment(None),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=20,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    match = re.search(r"^Packer v(\d+\.\d+\.\d+)", done.stdout, re.MULTILINE)
    return _version(match[1]) if match else None


def _version(text: str) -> Version:
    major, minor, patch = (int(part) for part in text.split("."))
    return major, minor, patch


def _how_to_install() -> str:
    return "apt-get install packer, or https://developer.hashicorp.com/packer/install"


def _last_words(done: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in (done.stdout + done.stderr).splitlines() if line.strip()]
    return lines[-1].strip() if lines else f"exit status {done.returncode}"
