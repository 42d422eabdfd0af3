"""The command line: Invoke, with our errors, exit statuses, overview, list and help."""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import re
import shutil
import signal
import sys
from collections.abc import Collection, Sequence
from textwrap import TextWrapper
from typing import Any

import invoke.parser.parser
from invoke import Config, Program
from invoke.parser.context import to_flag

from kiln.base.errors import OPERATION_FAILED, KilnError, nearest, operation_failed
from kiln.base.paths import ROOT
from kiln.cli.output import FORMAT, log, output, table
from kiln.cli.task import GROUPS, Tasks, flag

EXIT_STATUS = "Exit status: 0 done; 1 an operation failed, or the answer is no; 2 wrong input"
_HELP = {"help", "--help", "-h"}


class Words(invoke.parser.parser.ParseMachine):
    """Invoke's parser, with errors that name the nearest flag or task."""

    def handle(self, token: str) -> None:
        """Take the next word. A mistyped flag is not one of the words that a task needs."""
        self.word = token
        known = token in self.context.flags or self.waiting_for_flag_value
        if token.startswith("--") and self.context.missing_positional_args and not known:
            self.error("unknown flag")
        try:
            super().handle(token)
        except ValueError:
            name = flag(str(self.flag and self.flag.name))
            raise KilnError(f"{name} needs a whole number, not {token!r}") from None

    def error(self, msg: str) -> None:
        """Raise the error that Invoke found in the last word; it has `msg` for it."""
        task, lacks = self.context.name, self.context.missing_positional_args
        mistyped = self.word.startswith("--") and self.word not in self.context.flags
        if self.flag and self.flag.takes_value and self.flag.raw_value is None:
            raise KilnError(f"{flag(self.flag.name)} needs a value", hint=_see(task))
        if lacks and not mistyped:
            words = " ".join(str(each.name).upper() for each in self.context.positional_args)
            missing = " and ".join(flag(str(each.name)) for each in lacks)
            hint = f"./invoke {task} {words}; {_see(task)}"
            raise KilnError(f"specify {missing}", hint=hint)
        raise _unknown(self.word, [*self.context.flags, *self.contexts], task)


# The states of Invoke's machine are not inherited, and its parser makes the machine itself.
Words._class_states = Words.__base__._class_states
Words._class_transitions = Words.__base__._class_transitions
invoke.parser.parser.ParseMachine = Words  # type: ignore[misc]


def _unknown(word: str, known: Collection[str], task: str | None = None) -> KilnError:
    close = nearest(word, known, likeness=0.7)
    group = [name for name in known if name.startswith(f"{word}.")]
    if group and not task:
        return KilnError(f"{word} is a group of tasks", hint=", ".join(group))
    kind = "unknown flag" if word.startswith("-") else "unexpected word" if task else "unknown task"
    hint = _see(task)
    if close:
        hint = f"did you mean {close!r}? {hint.capitalize()}"
    elif kind == "unexpected word":
        hint = f"put its flag before it; {hint}"
    return KilnError(f"{kind} {word}", hint=hint)


def _see(task: str | None) -> str:
    return f"see ./invoke help {task}" if task else "see ./invoke --list"


class Kiln(Program):
    """Invoke's program with our overview, list and help."""

    def normalize_argv(self, argv: Any) -> None:
        """Take `help TASK` and `TASK --help` for `--help TASK`."""
        first, *words = argv
        known: Any = self.namespace and self.namespace.tasks
        if words[:1] == ["help"] or _HELP.intersection(words):
            names = [word for word in words if word not in _HELP and not word.startswith("-")]
            if names and names[0] not in known:
                raise _unknown(names[0], known)
            words = ["--help", *names[:1]]
        self.argv = [first, *words]

    def execute(self) -> None:
        """Run the tasks; Ctrl-C and SIGTERM end them so that clean-up runs."""
        # Invoke has turned Python's bytecode cache off.
        sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.default_int_handler)
        try:
            super().execute()
        except KeyboardInterrupt:
            raise operation_failed("interrupted") from None

    def print_help(self) -> None:
        """Print the overview."""
        output(None, (ROOT / "templates/overview.txt").read_text("utf-8").rstrip())

    def list_tasks(self) -> None:
        """Print all tasks by group."""
        for group in GROUPS:
            tasks = [task for task in self.collection.tasks.values() if task.group == group]
            rows = [(f"  {task.name}", task.doc.summary) for task in tasks]
            output(None, group, table((), rows), "")

    def print_task_help(self, name: str) -> None:
        """Print what a task takes, with its flags below their titles."""
        doc, context = self.collection[name].doc, self.parser.contexts[name]
        words = [argument.name.upper() for argument in context.positional_args]
        output(None, f"Usage: {' '.join(['./invoke', name, *words])} [flags]", "", doc.summary)
        titles = dict.fromkeys(title for title, _ in doc.helps.values())
        for title in sorted(titles, key="Output".__eq__):
            names = [each for each, (its_title, _) in doc.helps.items() if its_title == title]
            texts = dict(context.help_for(to_flag(flag(each).lstrip("-"))) for each in names)
            width = max(20, shutil.get_terminal_size().columns - 5 - max(map(len, texts)))
            # A value is never cut, so that it can be copied.
            whole = TextWrapper(width, break_long_words=False, break_on_hyphens=False)
            rows = [(f"  {flags}", whole.fill(text or "")) for flags, text in texts.items()]
            output(None, "", f"{title}:", table((), rows))
        if doc.examples:
            output(None, "", "Examples:", *(f"  {example}" for example in doc.examples))
        output(None, "", EXIT_STATUS)


def main(tasks: Tasks) -> None:
    """Run the tasks that the command line names, in the caller's folder."""
    with contextlib.suppress(OSError):
        os.chdir(os.environ.pop("KILN_CWD", "."))
    # Files go from here into images, whatever the caller's umask is.
    os.umask(0o022)
    # The lab answers on 127.0.0.1: no proxy. Go's programs do that by themselves.
    if any(name.lower().endswith("_proxy") for name in os.environ):
        hosts = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        if hosts != "*":
            hosts = ",".join(filter(None, [hosts, "127.0.0.1", "localhost"]))
            os.environ |= {"no_proxy": hosts, "NO_PROXY": hosts}
    status = run(sys.argv, tasks)
    # Python is about to exit, and would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise SystemExit(status)


def run(argv: Sequence[str], tasks: Tasks) -> int:
    """Parse `argv` (the first word is the program) and run its tasks; return the exit status.

    With --json an error is a line of JSON on stdout too. A programming error is a traceback.
    """
    version = re.search('^version = "(.+)"', (ROOT / "pyproject.toml").read_text(), re.MULTILINE)
    # No task has a configuration of Invoke.
    config: Any = functools.partial(Config, lazy=True)
    program = Kiln(version and version[1], tasks, "AMI Kiln", "./invoke", config_class=config)
    try:
        try:
            program.run(list(argv))
        finally:
            sys.stdout.flush()  # may fail as well
    except SystemExit as end:
        return int(end.code or 0)
    except (KilnError, OSError) as error:
        if isinstance(error, BrokenPipeError):  # the reader, such as `| head`, is gone
            _discard_output()
            return OPERATION_FAILED
        refused = error if isinstance(error, KilnError) else _failed(error)
        log(refused, error=True)
        FORMAT.json = "--json" in argv  # also where no task has begun
        output({"error": refused.to_dict()}, indent=None)
        FORMAT.json = False
        return refused.exit_status
    return 0


def _failed(error: OSError) -> KilnError:
    """Return the error of a file that cannot be read or written."""
    if error.errno == errno.ENOSPC:
        _discard_output()
    elif error.filename is None:
        raise error
    denied = error.errno in (errno.EACCES, errno.EPERM) and os.geteuid() != 0
    hint = "files of the lab belong to root: run it with sudo" if denied else ""
    return operation_failed(f"{error.filename or 'output'}: {error.strerror}", hint=hint)


def _discard_output() -> None:
    """Send stdout nowhere: Python flushes it on exit and would report the same error again."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
