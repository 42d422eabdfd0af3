"""Why a provisioner failed: its component and line, its own error, the last lines of output.

A script ends with `kiln: COMPONENT: ERROR: …` and indented lines about it, one of which is
`at: COMPONENT.sh line N` (provisioners/lib/kiln.sh). Packer only says that a script failed.
"""

from __future__ import annotations

import re
from collections import deque
from dataclasses import dataclass

from kiln.base.errors import OPERATION_FAILED, KilnError
from kiln.base.findings import Place
from kiln.base.overlay import provisioner_file, shown_script
from kiln.packer.process import Event

_LAST_LINES = 6
_ERROR = re.compile(r"kiln: [\w-]+: ERROR: (.*)")
_DETAIL = re.compile(r"kiln: [\w-]+:   (.*)")
# _kiln_missing of provisioners/lib/packages.sh.
_MISSING = re.compile(r"no repository has a package named ([^;]+)")
_PLACE = re.compile(r"at: [\w-]+\.sh line (\d+)")


@dataclass(frozen=True)
class Failure:
    """How a provisioner failed.

    `script` is relative to the checkout; `line` counts from 1, None if unknown. `details` are the
    script's own lines about its error, `said` the last lines of output before it.
    """

    component: str
    script: str
    message: str
    line: int | None = None
    details: tuple[str, ...] = ()
    said: tuple[str, ...] = ()

    @property
    def missing(self) -> list[str]:
        """The packages that no repository has."""
        named = _MISSING.search(self.message)
        return named[1].split(" or ") if named else []

    def lines(self) -> list[str]:
        """The lines below the message: the place, the script's words, the output before them."""
        place = f"{self.script} line {self.line}" if self.line else self.script
        said = ["its last lines:", *(f"  | {line}" for line in self.said)] if self.said else []
        return [place, *self.details, *said]


class ProvisionerError(KilnError):
    """A bake that a provisioner ended; exit status 1."""

    def __init__(self, recipe: str, failure: Failure, *, log: str) -> None:
        super().__init__(
            f"{recipe}: packer build failed in {failure.component}: {failure.message}",
            hint="\n  ".join([*failure.lines(), f"the whole log: {log}"]),
            exit_status=OPERATION_FAILED,
            place=Place(failure.script, failure.line),
        )
        self.failure = failure


class FailureReader:
    """Reads Packer's events; `failure` says how a provisioner failed, if one did."""

    def __init__(self) -> None:
        self._starts: list[tuple[str, int]] = []
        self._last = 0
        self._start("")

    def _start(self, component: str) -> None:
        self._component = component
        self._line: int | None = None
        self._messages: list[str] = []
        self._details: list[str] = []
        self._said: deque[str] = deque(maxlen=_LAST_LINES)
        # Whether Packer has begun to clean up.
        self._over = False
        # Packer's first error since then; what follows may be of its clean-up.
        self.first_error = ""

    def read(self, event: Event) -> None:
        """Take one line of Packer's output."""
        self._last = max(self._last, event.seconds)
        if event.component or event.says("stops_instance"):
            self._starts.append((event.component or "", event.seconds))
            self._start(event.component or "")
        elif event.kind == "say":
            self._over = not event.says("runs_script")
        elif event.says("exit_status", "error") or event.says("aborts", "error"):
            self._over = True
        elif event.kind in ("message", "error"):
            if event.kind == "error":
                self.first_error = self.first_error or event.text
            for line in () if self._over else event.text.splitlines():
                self._take(line.rstrip())

    def _take(self, line: str) -> None:
        error, detail = _ERROR.match(line), _DETAIL.match(line)
        if error:
            self._messages.append(error[1])
        elif detail and self._messages:
            place = _PLACE.fullmatch(detail[1])
            self._line = int(place[1]) if place else self._line
            self._details += [] if place else [detail[1]]
        elif line and not self._messages and line not in self._said:
            self._said.append(line)

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
        """The failure of the provisioner that ran last, None if none did; `packers_words` is
        Packer's own last error."""
        if not self._component:
            return None
        return Failure(
            self._component,
            shown_script(provisioner_file(self._component)),
            "; ".join(dict.fromkeys(self._messages)) or packers_words,
            self._line,
            tuple(self._details),
            tuple(self._said),
        )
