"""Why a provisioner failed: component, line, command, status and the tool's own last words.

provisioners/lib/kiln.sh prints what bash knows as lines `kiln: COMPONENT: …`, and below an error
indented ones that say what they are (`kind`, `at`, `in`, `status` …) or are a hint; Packer itself
only says that a script ended with another status than 0.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass, replace
from urllib.parse import urlsplit

from kiln import components
from kiln.base.account import Account
from kiln.base.errors import OPERATION_FAILED, KilnError
from kiln.base.findings import Place
from kiln.base.overlay import provisioner_file, shown_script
from kiln.base.vocabulary import masked
from kiln.facts import program_messages
from kiln.facts.program_messages import message
from kiln.packer.output import Event

# The last lines of a tool's output that are shown.
_LAST_LINES = 6
_LONGEST_COMMAND = 300
_HTTP_PORT = 80

_ERROR = re.compile(r"kiln: ([\w-]+): ERROR: (.*)", re.DOTALL)
_KIND = re.compile(r"kiln: [\w-]+:   kind: ([a-z-]+)$")
_DETAIL = re.compile(r"kiln: [\w-]+:   (.*)")
_OTHER = re.compile(r"kiln: [\w-]+: ")
# What provisioners/lib/kiln.sh calls an end that it noticed itself.
_TIME_LIMIT = "time-limit"
# The exit status is that of a command which failed, and not of a test such as [[ … ]].
_OF_A_COMMAND = {"command", "pipe", "exit"}
# Between the commands of a pipe; || is something else.
_PIPE = re.compile(r"(?<!\|)\|&?(?!\|)")
_IN_THE_LIBRARY = re.compile(r"lib/[\w.]+ line \d+, \w+")

_CONSOLE = (
    "its console may say why: aws ec2 get-console-output --instance-id {instance}; in the lab "
    "./invoke lab.logs --instance {instance}"
)


@dataclass(frozen=True)
class Failure:
    """How a provisioner failed.

    `script` is relative to the checkout; `line` counts from 1 and `command` is the statement
    there; `inside` names the place in provisioners/lib, if the failure was there. `status` is the
    exit status; `pipe` those of a pipeline's commands. `said` are the tool's last lines, `missing`
    the packages that no repository has. Unknown values are None or empty.
    """

    component: str
    script: str
    message: str
    line: int | None = None
    command: str = ""
    inside: str = ""
    status: int | None = None
    pipe: str = ""
    said: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    hints: tuple[str, ...] = ()

    def details(self) -> list[str]:
        """The lines below the message: place and command, status, the tool's words, hints."""
        place = f"{self.script} line {self.line}" if self.line else self.script
        where = f"{place}: {self.command}" if self.command else place
        last_words = [f"  | {line}" for line in self.said]
        status = [] if self.status is None else [f"exit status {self.status}"]
        pipe = [f"statuses of the pipe {self.pipe}{self._failed_in_pipe()}"] if self.pipe else []
        within = [f"in provisioners/{self.inside}"] if self.inside else []
        return [
            where,
            *filter(None, [", ".join([*within, *status, *pipe])]),
            *(["its last words:", *last_words] if last_words else []),
            *self.hints,
        ]

    def _failed_in_pipe(self) -> str:
        """`: grep x`, the commands of the pipe that failed; empty where the statement is more than
        a pipe."""
        commands, statuses = _PIPE.split(self.command), self.pipe.split()
        if len(commands) != len(statuses) or "$(" in self.command:
            return ""
        pairs = zip(commands, statuses, strict=True)
        return ": " + "; ".join(command.strip() for command, status in pairs if status != "0")


class ProvisionerError(KilnError):
    """A bake that a provisioner ended; exit status 1."""

    def __init__(self, recipe: str, failure: Failure, *, log: str) -> None:
        super().__init__(
            f"{recipe}: packer build failed in {failure.component}: {failure.message}",
            hint="\n  ".join([*failure.details(), f"the whole log: {log}"]),
            exit_status=OPERATION_FAILED,
            place=Place(failure.script, failure.line),
        )
        self.failure = failure


class FailureReader:
    """Reads Packer's events; `failure` says how a provisioner failed, if one did.

    `cause` is the error for which Packer removes an AMI that it has made: where it cannot do that,
    its last words tell of nothing else. Empty when it removes none.
    """

    def __init__(self) -> None:
        self.cause = ""
        self._error = ""
        self._patience = ""
        self._instance = "the build instance"
        self._starts: list[tuple[str, int]] = []
        self._last = 0
        self._start("")

    def _start(self, component: str) -> None:
        self._component = component
        self._messages: list[str] = []
        self._details: list[str] = []
        self._kinds: set[str] = set()
        self._last_lines: deque[str] = deque(maxlen=_LAST_LINES)
        self._rebooting = False
        self._left = False
        self._over = False

    def read(self, event: Event) -> None:
        """Take one line of Packer's output."""
        self._last = max(self._last, event.seconds)
        if event.kind == "error":
            self._error = event.text
        elif event.says("removes_ami"):
            self.cause = self._error
        if event.instance_id:
            self._instance = event.instance_id
        elif event.component:
            self._starts.append((event.component, event.seconds))
            self._start(event.component)
        elif event.says("pauses"):
            self._rebooting = True
        elif event.says("stops_instance"):
            self._starts.append(("", event.seconds))
            self._start("")
        elif event.patience:
            self._patience = event.patience
        elif event.kind == "say":
            # Packer's own line. After a failure it says how it cleans up.
            self._over = not event.says("runs_script")
        elif event.says("leaves", "error"):
            self._left = self._over = True
        elif event.says("exit_status", "error") or event.says("aborts", "error"):
            self._over = True
        elif event.kind in ("message", "error") and self._component and not self._over:
            self._rebooting = False
            for line in event.text.splitlines():
                self._take(line.rstrip())

    def _take(self, line: str) -> None:
        error, kind, detail = (pattern.match(line) for pattern in (_ERROR, _KIND, _DETAIL))
        if error:
            self._messages.append(error[2])
        elif kind:
            self._kinds.add(kind[1])
        elif detail:
            self._details.append(detail[1])
        elif _OTHER.match(line) and not self._messages:
            # What was printed before this step belongs to another.
            self._last_lines.clear()
            self._details.clear()
        elif line.strip() and not self._messages and line not in self._last_lines:
            self._last_lines.append(line)

    def seconds(self) -> dict[str, float]:
        """Component → the seconds from its start to the next one's, or to the end of the bake.

        A reboot counts for the component that asked for it.
        """
        ends = [*self._starts[1:], ("", self._last)]
        return {
            name: float(max(0, end - start))
            for (name, start), (_, end) in zip(self._starts, ends, strict=False)
            if name
        }

    def failure(self, packers_words: str) -> Failure | None:
        """The failure of the provisioner that ran last; None if it is not known to have failed.

        `packers_words` is Packer's own last error.
        """
        if not self._component:
            return None
        script = shown_script(provisioner_file(self._component))
        status = message("packer", "exit_status").search(packers_words)
        lost = bool(message("packer", "lost").search(packers_words)) and not status
        if self._left and not self._messages:
            return Failure(
                self._component,
                script,
                f"it did not end within its time limit, and {self._instance} did not end it "
                f"either: Packer left it after {self._patience}",
                said=self._said(script),
                hints=(_CONSOLE.format(instance=self._instance),),
            )
        if (self._rebooting or lost) and not self._messages:
            rebooted = self._rebooting or _may_reboot(self._component)
            what = "did not come back after its reboot" if rebooted else "does not answer any more"
            return Failure(
                self._component,
                script,
                f"{self._instance} {what}: {packers_words}",
                hints=(_CONSOLE.format(instance=self._instance),),
            )
        if message("packer", "disconnected").search(packers_words) and not self._messages:
            return Failure(
                self._component,
                script,
                "its SSH session ended before the script did",
                said=self._said(script),
                hints=(
                    "does the script end its session, or restart sshd or the network? A reboot "
                    "needs `reboots: true` in its component",
                    _CONSOLE.format(instance=self._instance),
                ),
            )
        if not self._messages and not status:
            return None
        first = f"the script ended with status {status[1]}" if status else ""
        failure = Failure(
            self._component,
            script,
            "; ".join(dict.fromkeys(self._messages)) or first,
            status=int(status[1]) if status else None,
            said=self._said(script),
        )
        for detail in self._details:
            failure = _with_detail(failure, detail)
        of_a_command = not self._messages or bool(self._kinds & _OF_A_COMMAND)
        return _explained(failure, of_a_command=of_a_command)

    def _said(self, script: str) -> tuple[str, ...]:
        """The last lines of the tool, without bash's about a process that the time limit ended."""
        ended = message("bash", "ended_process")
        overtime = _TIME_LIMIT in self._kinds
        return tuple(
            message("bash", "place").sub(rf"{script} line \1", line)
            for line in self._last_lines
            if not (overtime and ended.search(line))
        )


def about_proxy(failure: Failure, account: Account) -> tuple[str, ...]:
    """The proxy of the bake and where it is set, if the tool's words are those of a failing one."""
    words = "\n".join([failure.message, *failure.said])
    if not account.proxy:
        return ()
    parts = urlsplit(account.proxy)
    host, port = parts.hostname, parts.port or _HTTP_PORT
    if not (host and program_messages.blames_proxy(words, host, port)):
        return ()
    return (
        f"the bake goes through the proxy {masked(account.proxy, whole=True)} "
        f"({account.origins.get('proxy', 'proxy')}): can the build instance reach it, and does it "
        "admit that host? `no_proxy` names hosts that are reached without it",
    )


def _may_reboot(name: str) -> bool:
    return name in components.names() and components.get(name).reboots


def _with_detail(failure: Failure, text: str) -> Failure:
    """The failure with a line of `kiln_die` or `_kiln_report`; any other line is a hint."""
    key, _, value = text.partition(": ")
    if key == "at" and (match := re.fullmatch(r"[\w-]+\.sh line (\d+)", value)):
        line = int(match[1])
        return replace(failure, line=line, command=_statement(failure.component, line))
    if key == "in" and _IN_THE_LIBRARY.fullmatch(value):
        return replace(failure, inside=value)
    if key == "status" and value.isdecimal():
        return replace(failure, status=int(value))
    if key == "statuses of the pipe":
        return replace(failure, pipe=value)
    if key == "missing":
        return replace(failure, missing=tuple(value.split()))
    return replace(failure, hints=(*failure.hints, text))


def _statement(component: str, line: int) -> str:
    """The statement of a provisioner that ends or begins in a line; empty if there is none."""
    try:
        lines = provisioner_file(component).read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    if not 1 <= line <= len(lines):
        return ""
    first = last = line - 1
    while first > 0 and _continues(lines[first - 1], lines[first]):
        first -= 1
    while last + 1 < len(lines) and _continues(lines[last], lines[last + 1]):
        last += 1
    text = " ".join(part.strip().removesuffix("\\").rstrip() for part in lines[first : last + 1])
    return text if len(text) <= _LONGEST_COMMAND else f"{text[:_LONGEST_COMMAND]} …"


def _continues(line: str, following: str) -> bool:
    ends = line.rstrip().endswith(("\\", "|", "&&"))
    return ends or following.lstrip().startswith(("|", "&&"))


def _explained(failure: Failure, *, of_a_command: bool) -> Failure:
    """The failure with hints from its status and from the tool's words.

    A status of 1 that is not a command's is left out: it says nothing.
    """
    words = "\n".join([failure.message, *failure.said])
    status = failure.status if of_a_command or (failure.status or 0) > 1 else None
    hints = program_messages.hints(words, failure.status)
    return replace(failure, status=status, hints=(*failure.hints, *hints))
