"""The front door: Invoke's program, and errors as one message with the right exit code."""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import io
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

from invoke import Context, Exit, Program, Task
from invoke.exceptions import ParseError

from kiln.base.errors import BAD_INPUT, OPERATION_FAILED, KilnError

# The tasks whose one word may be left out, and the flag it stands for.
_LEFT_OUT = {"lab.shell": "--instance", "lab.logs": "--instance", "bench": "--what"}


class Front(Program):
    """Invoke, except that a flag or task it does not know is bad input: exit code 2."""

    def parse_core(self, argv: list[str] | None) -> None:
        """See invoke.Program."""
        # Invoke keeps Python from storing what it compiles: half a second of every build.
        before = sys.dont_write_bytecode
        try:
            super().parse_core(_with_flag(sys.argv if argv is None else argv))
        except ParseError as error:
            raise Exit(code=_refuse(f"{error}\n  see ./invoke --help", BAD_INPUT)) from None
        finally:
            sys.dont_write_bytecode = before

    def parse_cleanup(self) -> None:
        """See invoke.Program."""
        try:
            super().parse_cleanup()
        except ParseError as error:  # --help of no task
            raise Exit(code=_refuse(f"{error}\n  see ./invoke --list", BAD_INPUT)) from None

    def parse_tasks(self) -> None:
        """See invoke.Program."""
        try:
            super().parse_tasks()
        except ParseError as error:
            hint = "see ./invoke --list and ./invoke --help TASK"
            raise Exit(code=_refuse(f"{error}\n  {hint}", BAD_INPUT)) from None
        except ValueError as error:
            # Invoke casts a flag to the type of its default and lets int() complain.
            raise Exit(code=_refuse(f"a flag takes a whole number: {error}", BAD_INPUT)) from None


def task(
    name: str | None = None,
    help: dict[str, str] | None = None,  # noqa: A002 - invoke.task's own word
    **options: Any,
) -> Callable[[Callable[..., int | None]], Task[Any]]:
    """Like invoke.task: a KilnError becomes its message and exit code, never a traceback.

    The function's result is the exit code; None is 0.
    """

    def wrap(body: Callable[..., int | None]) -> Task[Any]:
        defaults = inspect.signature(body).parameters

        @functools.wraps(body)
        def run(context: Context, *args: Any, **kwargs: Any) -> None:
            raise_sigterm()

            def checked() -> int | None:
                _not_empty(defaults, kwargs)
                return body(context, *args, **kwargs)

            code = guarded(checked)
            if code:
                raise Exit(code=code)

        return Task(run, name=name, help=help or {}, auto_shortflags=False, **options)

    return wrap


def _not_empty(flags: Mapping[str, inspect.Parameter], values: Mapping[str, Any]) -> None:
    """Raises KilnError for a flag with nothing in it: a shell variable that is not set."""
    for name, value in values.items():
        if value != flags[name].default and isinstance(value, str) and not value.strip():
            flag = name.replace("_", "-")
            raise KilnError(
                f"--{flag} is empty", hint="give it a value, or leave it out (is a variable unset?)"
            )


def guarded(body: Callable[[], int | None]) -> int:
    """Run `body`; its exit code, or that of the error it ended with, printed on stderr."""
    try:
        return body() or 0
    except KilnError as error:
        return _refuse(str(error), error.exit_code)
    except KeyboardInterrupt:
        return _refuse("interrupted", OPERATION_FAILED)
    except BrokenPipeError:
        # `| head` has seen enough; Python would complain again when it closes stdout.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OPERATION_FAILED
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return _refuse(
                f"the disk is full: {error.filename or 'while writing'}\n  make room and try again",
                OPERATION_FAILED,
            )
        if error.filename is not None:
            return _refuse(f"{error.filename}: {error.strerror}", OPERATION_FAILED)
        raise


def raise_sigterm() -> None:
    """SIGTERM ends a task as Ctrl-C does, so that clean-up runs."""

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, stop)


def show(data: Any, *, as_json: bool, text: Callable[[Any], str]) -> None:
    """Print data for a program or for a person."""
    print(json.dumps(data, indent=2, default=str) if as_json else text(data))


def _refuse(message: str, code: int) -> int:
    # A colour where a person looks, none in a log.
    mark = "\033[31merror:\033[0m" if sys.stderr.isatty() else "error:"
    print(f"{mark} {message}", file=sys.stderr)
    return code


def main() -> None:
    """Run Invoke on tasks.py, where the caller is."""
    for stream in (sys.stdout, sys.stderr):
        # A terminal without a letter must not end the task that wanted to show it.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with contextlib.suppress(OSError):
        os.chdir(os.environ.pop("KILN_CWD", "."))
    Front(name="AMI Kiln", binary="./invoke", version=_version()).run()


def _with_flag(argv: list[str]) -> list[str]:
    """`bench xid` for `bench --what xid`: Invoke has no positional that may be left out."""
    for at, (task_name, word) in enumerate(pairwise(argv), 1):
        if task_name in _LEFT_OUT and not word.startswith("-"):
            return [*argv[:at], _LEFT_OUT[task_name], *argv[at:]]
    return argv


def _version() -> str:
    from kiln.base.paths import ROOT

    line = next(
        line
        for line in (ROOT / "pyproject.toml").read_text().splitlines()
        if line.startswith("version")
    )
    return line.split('"')[1]


if __name__ == "__main__":
    main()
