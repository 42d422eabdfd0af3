"""The command line's outer layer: Invoke, with errors as one message and an exit status.

Invoke reads the arguments and calls the task. What it cannot do is here: exit status 2 and a hint
for arguments that it refuses, a task's result as exit status, errors as messages (with `--json`
as JSON as well), SIGTERM that ends a task as Ctrl-C does.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import inspect
import io
import itertools
import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from invoke import Context, Exit, Program, Task
from invoke.exceptions import ParseError, UnknownFileType

from kiln.base.errors import OPERATION_FAILED, KilnError, nearest, operation_failed
from kiln.base.vocabulary import printable
from kiln.cli.columns import WholeWords


def main() -> None:
    """Run the task that the command line names, in the caller's folder."""
    for stream in (sys.stdout, sys.stderr):
        # A character that the terminal cannot encode must not end the task.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")
    with contextlib.suppress(OSError):
        os.chdir(os.environ.pop("KILN_CWD", "."))
    # Files go from here into images, and a later run believes what this one writes: their modes are
    # the same whatever the caller's umask is.
    os.umask(0o022)
    _keep_loopback_from_proxies()
    try:
        _end_on_signals()
        status = run(sys.argv)
    except KeyboardInterrupt:
        status = OPERATION_FAILED
    except RuntimeError as error:
        # Before 3.12 Python wraps what a signal raises in a __set_name__; each dataclass has some.
        if not isinstance(error.__cause__, KeyboardInterrupt):
            raise
        status = OPERATION_FAILED
    # Python is about to exit, and would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise SystemExit(status)


def _keep_loopback_from_proxies() -> None:
    """Reach 127.0.0.1, where the lab answers, directly; Go's programs do that by themselves."""
    if any(name.lower().endswith("_proxy") for name in os.environ):
        lower, upper = os.environ.get("no_proxy"), os.environ.get("NO_PROXY")
        for name, hosts in (("no_proxy", lower or upper), ("NO_PROXY", upper or lower)):
            if hosts != "*":
                os.environ[name] = ",".join(filter(None, [hosts, "127.0.0.1", "localhost"]))


def run(argv: Sequence[str]) -> int:
    """Parse `argv` (the first word is the program) and run its tasks; the exit status."""
    program = WholeWords(name="AMI Kiln", binary="./invoke", version=kiln_version())

    def steps() -> int:
        try:
            _steps(program, argv)
        except Exit as end:  # --help, --list, and each task with a status of its own
            return end.code
        return 0

    # Arguments that Invoke refuses are not parsed: a program that asked for JSON still gets it.
    return guarded(steps, as_json="--json" in argv)


def _steps(program: Program, argv: Sequence[str]) -> None:
    """The steps of `invoke.Program.run`, which exits with status 1 where ours is 2.

    Raises KilnError for arguments that Invoke refuses, Exit when Invoke or a task ends early.
    """
    program.create_config()
    with _refused_by_invoke(program, argv):
        program.parse_core(list(argv))
    # parse_core turns Python's bytecode cache off, which would cost each start half a second.
    sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
    program.parse_collection()
    with _refused_by_invoke(program, argv):
        program.parse_tasks()
        program.parse_cleanup()
        program.update_config()
    program.execute()


@contextlib.contextmanager
def _refused_by_invoke(program: Program, argv: Sequence[str]) -> Iterator[None]:
    """Turns what Invoke raises for bad arguments into KilnError (exit status 2)."""
    try:
        yield
    except ParseError as error:
        raise _refused_by_parser(error, _task_names(program)) from None
    except UnknownFileType as error:
        raise KilnError(str(error), hint=SEE_LIST) from None
    except ValueError as error:
        raise KilnError(_not_a_number(str(error), argv), hint=SEE_LIST) from None
    except Exit as end:
        if end.message:
            raise KilnError(end.message, hint=SEE_LIST) from None
        raise


SEE_LIST = "see ./invoke --list, and ./invoke --help TASK for its flags"


def _task_names(program: Program) -> list[str]:
    """The names of the tasks; [] as long as tasks.py is not loaded."""
    collection = getattr(program, "collection", None)
    return sorted(collection.task_names) if collection is not None else []


def _refused_by_parser(error: ParseError, tasks: Sequence[str]) -> KilnError:
    """What Invoke's parser refuses, in a sentence that names the flag or the task.

    A message that is not known here is passed on as it is.
    """
    from kiln.facts.tables import message

    # Where parsing stopped: None at the start of the line, and for `--help nosuch`.
    context = error.context
    name = context.name if context else None
    group, _, last = (name or "").partition(".")
    if group == last:
        name = group  # as it was typed: a group's default task goes by the group's name
    hint = f"see ./invoke --help {name}" if name else SEE_LIST
    if context and (missing := context.missing_positional_args):
        words = [str(argument.name).upper() for argument in context.positional_args]
        flags = " and ".join(_flag(str(argument.name)) for argument in missing)
        return KilnError(f"{name} needs {flags}: ./invoke {name} {' '.join(words)}", hint=hint)
    if match := message("invoke", "no_value").search(str(error)):
        return KilnError(f"{_flag(match.group(1))} needs a value", hint=hint)
    match = message("invoke", "unknown").search(str(error))
    if match is None:
        return KilnError(str(error), hint=hint)
    word = match.group(1)
    if word.startswith("-"):
        text, best = (
            f"unknown flag {word}",
            nearest(word, context.flags if context else [], likeness=0.7),
        )
    elif name:
        text, best = f"{name} does not take {word!r}, and no task has that name", ""
    else:
        text, best = f"unknown task {word}", nearest(word, tasks, likeness=0.7)
        members = [task for task in tasks if task.startswith(f"{word}.")]
        if members and not best:
            return KilnError(f"{text}; its tasks are {', '.join(sorted(members))}", hint=hint)
    return KilnError(f"{text}; did you mean {best}?" if best else text, hint=hint)


def _not_a_number(message: str, argv: Sequence[str]) -> str:
    """What int() refused when Invoke cast a flag's value to the type of its default.

    The exception does not name the flag: it is the one before the value in `argv`.
    """
    value = message.rpartition("base 10: ")[2]
    flag = "a flag"
    for before, word in itertools.pairwise(argv):
        name, equals, rest = word.partition("=")
        if before.startswith("-") and repr(word) == value:
            flag = before
        elif equals and name.startswith("-") and repr(rest) == value:
            flag = name
    return f"{flag} needs a whole number, not {value}"


def _flag(name: str) -> str:
    """The flag of a parameter: --instance-type, -k."""
    return ("-" if len(name) == 1 else "--") + name.strip("_").replace("_", "-")


def task(
    name: str | None = None,
    help: dict[str, str] | None = None,  # noqa: A002 - invoke.task's own word
    **options: Any,
) -> Callable[[Callable[..., int | None]], Task[Any]]:
    """Like invoke.task, but the function returns the exit status (None is 0) and errors that
    `guarded` knows become messages; JSON as well where the task was called with `--json`."""

    def wrap(body: Callable[..., int | None]) -> Task[Any]:
        parameters = inspect.signature(body).parameters

        @functools.wraps(body)
        def run_task(context: Context, *args: Any, **kwargs: Any) -> None:
            def checked() -> int | None:
                _refuse_empty(parameters, kwargs)
                _refuse_flags(parameters, kwargs)
                return body(context, *args, **kwargs)

            status = guarded(checked, as_json=bool(kwargs.get("json")))
            if status:
                raise Exit(code=status)

        return Task(run_task, name=name, help=help or {}, auto_shortflags=False, **options)

    return wrap


def _refuse_empty(parameters: Mapping[str, inspect.Parameter], values: Mapping[str, Any]) -> None:
    """Raises KilnError for a flag without a value: in a script, a variable that is not set."""
    for name, value in values.items():
        if value != parameters[name].default and isinstance(value, str) and not value.strip():
            raise KilnError(
                f"{_flag(name)} is empty",
                hint="give it a value, or leave it out (is a variable unset?)",
            )


def _refuse_flags(parameters: Mapping[str, inspect.Parameter], values: Mapping[str, Any]) -> None:
    """Raises KilnError for an unknown flag instead of a word that the task needs: Invoke takes
    the next word for it, whatever that is."""
    flags = [_flag(name) for name in parameters]
    for name, value in values.items():
        needed = parameters[name].default is inspect.Parameter.empty
        if needed and value == "--help":
            raise KilnError("this task needs words, so --help goes before its name", hint=SEE_LIST)
        if needed and isinstance(value, str) and value.startswith("--"):
            close = nearest(value, flags, likeness=0.7)
            text = f"unknown flag {value}" + (f"; did you mean {close}?" if close else "")
            raise KilnError(text, hint=f"{SEE_LIST}; a file of that name is ./{value}")


def guarded(body: Callable[[], int | None], *, as_json: bool = False) -> int:
    """Run `body`; its exit status, or that of the error that ended it, printed on stderr.

    With `as_json` the error is also printed on stdout, as one line of JSON. Programming errors
    are not caught.
    """
    try:
        status = body() or 0
        # Flushing the buffer may fail too: find out here, not when Python exits.
        sys.stdout.flush()
    except KilnError as error:
        return _refuse(error, as_json=as_json)
    except KeyboardInterrupt:
        return _refuse(operation_failed("interrupted"), as_json=as_json)
    except BrokenPipeError:
        # The reader, such as `| head`, has closed the pipe.
        _discard_output()
        return OPERATION_FAILED
    except OSError as error:
        if error.errno == errno.ENOSPC:
            refused = operation_failed(
                f"the disk is full: {error.filename or 'while writing'}",
                hint="free some space and try again",
            )
        elif error.filename is not None:
            denied = error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0
            refused = operation_failed(
                f"{error.filename}: {error.strerror}",
                hint="it may belong to root, as what the lab makes does: run it with sudo, or "
                "remove it with sudo"
                if denied
                else "",
            )
        else:
            raise
        if error.filename is None:
            _discard_output()
        return _refuse(refused, as_json=as_json)
    return status


def _discard_output() -> None:
    """Send stdout nowhere: Python flushes it on exit and would report the same error again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def show(data: Any, *, as_json: bool, text: Callable[[Any], str]) -> None:
    """Print data for a program or for a person."""
    say(json.dumps(data, indent=2, default=str) if as_json else text(data))


def tell(data: Any, *, as_json: bool, text: str) -> None:
    """Say what a task has done that prints nothing else: a person reads `text` on stderr."""
    if as_json:
        show(data, as_json=True, text=str)
    else:
        note(text)


def say(text: str) -> None:
    """Print a task's output."""
    print(printable(text))


def note(text: str) -> None:
    """Tell a person something that is not the task's output: on stderr."""
    print(printable(text), file=sys.stderr, flush=True)


def report(error: KilnError) -> None:
    """Tell a person what failed: on stderr, in colour on a terminal."""
    mark = "\033[31merror:\033[0m" if sys.stderr.isatty() else "error:"
    print(f"{mark} {printable(error)}", file=sys.stderr, flush=True)


def _refuse(error: KilnError, *, as_json: bool) -> int:
    report(error)
    if as_json:
        # One line, so that a task that prints a line per event stays readable line by line.
        with contextlib.suppress(OSError):
            print(json.dumps({"error": error.as_json()}), flush=True)
    return error.exit_status


def _end_on_signals() -> None:
    """Make SIGINT and SIGTERM end a task by KeyboardInterrupt, so that clean-up runs.

    Until here SIGINT ends the process at once (setup/start.py).
    """

    def stop(number: int, frame: Any) -> None:
        raise KeyboardInterrupt

    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, stop)


def kiln_version() -> str:
    """AMI Kiln's version: `[project] version` of pyproject.toml."""
    from kiln.base.paths import ROOT

    if sys.version_info >= (3, 11):
        import tomllib
    else:
        import tomli as tomllib
    with (ROOT / "pyproject.toml").open("rb") as file:
        return str(tomllib.load(file)["project"]["version"])
