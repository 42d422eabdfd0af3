"""What the campaign has tried, kept between its runs: a line of JSON per case.

A part tries what no run before it has tried, and what failed; when every case of it has passed, the
next run begins anew. So the whole list is tried over several runs, and a run that is cut off loses
nothing but the case it was at.
"""

from __future__ import annotations

import json
import random
import subprocess
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from devel.campaign.testbed import spread
from kiln.base.paths import ROOT, build_dir

# What is kept of a message.
_CHARACTERS = 3000
# Several cases are tried at once.
_WRITING = threading.Lock()


@dataclass
class Book:
    """The results of a part of the campaign; the last one of a case counts."""

    path: Path
    results: dict[str, dict[str, str]] = field(default_factory=dict)

    def begin(self, cases: Iterable[str], *, anew: bool = True) -> list[str]:
        """The cases that this run has to try, in an order whose beginnings are spread evenly.

        Where all have passed these are all of them again, unless `anew` is false.
        """
        whole = list(cases)
        if anew and all(self._passed(case) for case in whole):
            self.path.unlink(missing_ok=True)
            self.results = {}
        left = [case for case in whole if not self._passed(case)]
        return [left[index] for index in spread(len(left), random.random())]

    def note(self, case: str, failure: str = "", *, excuse: str = "") -> None:
        """Write down how a case ended: `failure` is what is wrong, `excuse` why it may be."""
        result = {"case": case, "found": failure[-_CHARACTERS:], "commit": _commit(), "at": _now()}
        result |= {"excuse": excuse} if excuse else {}
        with _WRITING:
            self.results[case] = result
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as out:
                out.write(json.dumps(result) + "\n")

    def tried(self, cases: Iterable[str]) -> int:
        """How many of these cases have a result."""
        return sum(case in self.results for case in cases)

    def bad(self, cases: Iterable[str]) -> int:
        """How many of these cases ended wrongly."""
        return sum(bool(self.results.get(case, {}).get("found")) for case in cases)

    def excused(self) -> int:
        """How many cases ended wrongly and may."""
        return sum("excuse" in result for result in self.results.values())

    def when(self) -> str:
        """From when the results are, and of which commits."""
        commits = list(dict.fromkeys(result["commit"] for result in self.results.values()))
        moments = sorted(result["at"] for result in self.results.values())
        if not moments:
            return "never run"
        return f"{moments[0]} to {moments[-1]}, commit {', '.join(commits)}"

    def _passed(self, case: str) -> bool:
        return case in self.results and not self.results[case]["found"]


def opened(part: str) -> Book:
    """The book of a part: `build/campaign/PART.jsonl`."""
    return opened_at(build_dir() / "campaign" / f"{part}.jsonl")


def opened_at(path: Path) -> Book:
    """The book in a file. A line that was cut off is left out."""
    book = Book(path)
    if path.exists():
        whole, _, cut = path.read_bytes().rpartition(b"\n")
        if cut:
            path.write_bytes(whole + b"\n" * bool(whole))
        for line in whole.splitlines():
            result = json.loads(line)
            book.results[result["case"]] = result
    return book


def _commit() -> str:
    done = subprocess.run(
        ["git", "-c", f"safe.directory={ROOT}", "rev-parse", "--short", "HEAD"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or "unknown"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M")
