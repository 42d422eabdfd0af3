"""The command line: Invoke, with errors as one message, exit statuses, and help by subject."""

from __future__ import annotations

import shutil
import signal
import sys
from collections.abc import Iterable
from textwrap import TextWrapper
from typing import Any

import invoke.parser.parser
from invoke import Config, Program
from invoke.parser.context import to_flag

from kiln.base.errors import KilnError, nearest, operation_failed
from kiln.cli.output import output, table
from kiln.cli.task import GROUPS, flag

OVERVIEW = """\
AMI Kiln builds Amazon Machine Images for NVIDIA GPUs, boots each one and checks it.

  ./invoke list                                    show the AMIs of amis.yaml
  ./invoke check                                   check that their versions work together
  ./invoke build --distro al2 --driver 510.47.03   build one, without AWS credentials in the lab
  ./invoke channels                                show what each channel holds
  ./invoke help build                              show a task's flags; --list shows all tasks

Start with docs/getting-started.md; README.md names the other pages."""
EXIT_STATUS = "Exit status: 0 done; 1 an operation failed, or the answer is no; 2 wrong input"
SEE_LIST = "see ./invoke --list, and ./invoke help TASK for its flags"


class Words(invoke.parser.parser.ParseMachine):
    """Invoke's parser of words, with errors that name the flag or the task and end with 2."""

    def handle(self, token: str) -> None:
        """Take the next word; a flag is never the word that a task needs."""
        self.word = token
        is_flag = token.startswith("--") and not self.waiting_for_flag_value
        if is_flag and token.endswith("help") and self.context.name:
            self.initial.args.help.value = self.context.name
        elif is_flag and self.context.missing_positional_args and token not in self.context.flags:
            self.error("unknown flag")
        else:
            super().handle(token)

    def complete_context(self) -> None:
        """Require the words of a task, unless its help is asked for."""
        if not (self.context.name and self.initial.args.help.value):
            super().complete_context()

    def see_value(self, value: Any) -> None:
        """Take a flag's value."""
        try:
            super().see_value(value)
        except ValueError:
            name = flag(self.flag.name)  # type: ignore[attr-defined]
            raise KilnError(f"{name} needs a whole number, not {value!r}") from None

    def error(self, msg: str) -> None:
        """Raise the error that `msg` names in Invoke's words."""
        name, missing = self.context.name, self.context.missing_positional_args
        hint = f"see ./invoke help {name}" if name else SEE_LIST
        if self.flag and self.flag.takes_value and self.flag.raw_value is None:
            raise KilnError(f"{flag(self.flag.name)} needs a value", hint=hint)
        if missing and not self.word.startswith("--"):
            needs = " and ".join(flag(str(argument.name)) for argument in missing)
            usage = " ".join(str(each.name).upper() for each in self.context.positional_args)
            raise KilnError(f"{name} needs {needs}: ./invoke {name} {usage}", hint=hint)
        if name and not self.word.startswith("-"):
            text = f"{name} does not take {self.word!r}, and no task has that name"
            raise KilnError(text, hint=hint)
        raise unknown_word(self.word, [*self.context.flags, *self.contexts], hint)


# The states of Invoke's machine are not inherited, and its parser makes the machine itself.
Words._class_states = Words.__base__._class_states
Words._class_transitions = Words.__base__._class_transitions
invoke.parser.parser.ParseMachine = Words  # type: ignore[misc]


def unknown_word(word: str, known: Iterable[str], hint: str = SEE_LIST) -> KilnError:
    """Return the error for a word that is neither a flag nor a task."""
    close = nearest(word, known, likeness=0.7)
    text = f"unknown {'flag' if word.startswith('-') else 'task'} {word}"
    return KilnError(f"{text}; did you mean {close}?" if close else text, hint=hint)


class Kiln(Program):
    """Invoke's program with our overview, list and help."""

    def create_config(self) -> None:
        """Read no configuration of Invoke: no task has any."""
        self.config = Config(lazy=True)

    def normalize_argv(self, argv: Any) -> None:
        """Take `help TASK` for `--help TASK`."""
        super().normalize_argv(argv)
        if self.argv[1:2] == ["help"]:
            self.argv = [self.argv[0], "--help", *self.argv[2:]]

    def parse_collection(self) -> None:
        """Take the tasks, with Python's bytecode cache, which Invoke has turned off."""
        sys.dont_write_bytecode = bool(sys.flags.dont_write_bytecode)
        super().parse_collection()

    def parse_cleanup(self) -> None:
        """Answer --help and --list."""
        name = self.args.help.value
        if isinstance(name, str) and name not in self.parser.contexts:
            raise unknown_word(name, self.parser.contexts)
        super().parse_cleanup()

    def execute(self) -> None:
        """Run the tasks; Ctrl-C and SIGTERM end them so that clean-up runs."""
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, _interrupt)
        try:
            super().execute()
        except KeyboardInterrupt:
            raise operation_failed("interrupted") from None

    def print_help(self) -> None:
        """Print the overview."""
        output(None, OVERVIEW)

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
        for title in dict.fromkeys(title for title, _ in doc.helps.values()):
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


def _interrupt(number: int, frame: Any) -> None:
    raise KeyboardInterrupt
