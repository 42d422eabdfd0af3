"""The command line: Invoke, with our errors, exit statuses, overview, list and help."""

from __future__ import annotations

import contextlib
import functools
import os
import shutil
import signal
import sys
from collections.abc import Collection, Sequence
from typing import Any

import invoke.parser.parser
from invoke import Config, ParserContext, Program

from kiln.base.errors import OPERATION_FAILED, KilnError, folded, nearest, operation_failed
from kiln.base.paths import TEMPLATES, version
from kiln.cli import targets
from kiln.cli.output import FORMAT, discard_output, file_failed, log, output, table
from kiln.cli.task import GROUPS, Tasks, flag


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
            missing = " and ".join(flag(str(each.name)) for each in lacks)
            raise KilnError(f"specify {missing}", hint=f"{_usage(self.context)}; {_see(task)}")
        raise _unknown(self.word, [*self.context.flags, *self.contexts], task)


# The states of Invoke's machine are not inherited, and its parser makes the machine itself.
Words._class_states = Words.__base__._class_states
Words._class_transitions = Words.__base__._class_transitions
invoke.parser.parser.ParseMachine = Words  # type: ignore[misc]


def _unknown(word: str, known: Collection[str], task: str | None = None) -> KilnError:
    group = [name for name in known if name.startswith(f"{word}.")]
    if group and not task:
        return KilnError(f"{word} is a group of tasks", hint=", ".join(group))
    kind = "unknown flag" if word.startswith("-") else "unexpected word" if task else "unknown task"
    hint = _see(task)
    if close := nearest(word, known, likeness=0.7):
        hint = f"did you mean {close!r}? {hint.capitalize()}"
    elif kind == "unexpected word":
        hint = f"put its flag before it; {hint}"
    return KilnError(f"{kind} {word}", hint=hint)


def _usage(context: ParserContext) -> str:
    words = [str(each.name).upper() for each in context.positional_args]
    return " ".join(["./invoke", str(context.name), *words])


def _see(task: str | None) -> str:
    return f"see ./invoke help {task}" if task else "see ./invoke --list"


class Kiln(Program):
    """Invoke's program with our overview, list and help."""

    def normalize_argv(self, argv: Any) -> None:
        """Take `help TASK` and `TASK --help` for `--help TASK`."""
        first, *words = argv
        known: Any = self.namespace and self.namespace.tasks
        if {"help", "--help", "-h"}.intersection(words):
            names = [word for word in words if word != "help" and not word.startswith("-")]
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
        output(None, (TEMPLATES / "overview.txt").read_text("utf-8").rstrip())

    def list_tasks(self) -> None:
        """Print all tasks by group."""
        for group in GROUPS:
            tasks = [task for task in self.collection.tasks.values() if task.group == group]
            rows = [(f"  {task.name}", task.doc.summary) for task in tasks]
            output(None, group, table((), rows), "")

    def print_task_help(self, name: str) -> None:
        """Print what a task takes, with its flags below their titles."""
        doc, context = self.collection[name].doc, self.parser.contexts[name]
        output(None, f"Usage: {_usage(context)} [flags]", "", doc.summary)
        for title, names in doc.titles().items():
            texts = dict(context.help_for(flag(each)) for each in names)
            width = max(20, shutil.get_terminal_size().columns - 5 - max(map(len, texts)))
            rows = [(f"  {each}", "\n".join(folded(text, width))) for each, text in texts.items()]
            output(None, "", f"{title}:", table((), rows))
        if doc.examples:
            output(None, "", "Examples:", *(f"  {example}" for example in doc.examples))
        output(None, "", "Exit status: 0 done; 1 failed, or the answer is no; 2 wrong input")


def main(tasks: Tasks) -> None:
    """Run the tasks that the command line names, in the caller's folder."""
    with contextlib.suppress(OSError):
        os.chdir(os.environ.pop("KILN_CWD", "."))
    # Files go from here into images, whatever the caller's umask is.
    os.umask(0o022)
    targets.bypass_proxy()
    status = run(sys.argv, tasks)
    # Python is about to exit, and would print a traceback.
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    raise SystemExit(status)


def run(argv: Sequence[str], tasks: Tasks) -> int:
    """Parse `argv` (the first word is the program) and run its tasks; return the exit status.

    With --json an error is a line of JSON on stdout too. A programming error is a traceback.
    """
    # No task has a configuration of Invoke.
    config: Any = functools.partial(Config, lazy=True)
    program = Kiln(version(), tasks, "AMI Kiln", "./invoke", config_class=config)
    try:
        try:
            program.run(list(argv))
        finally:
            sys.stdout.flush()  # may fail as well
    except SystemExit as end:
        return int(end.code or 0)
    except BrokenPipeError:  # the reader, such as `| head`, is gone
        discard_output()
        return OPERATION_FAILED
    except (KilnError, OSError) as error:
        refused = error if isinstance(error, KilnError) else file_failed(error)
        log(refused, error=True)
        FORMAT.json = "--json" in argv  # also where no task has begun
        output({"error": refused.to_dict()}, indent=None)
        FORMAT.json = False
        return refused.exit_status
    return 0
