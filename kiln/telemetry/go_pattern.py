"""Would Go's regular expressions take a pattern of the agent's configuration?"""

from __future__ import annotations

import re

import re2

# What is no \C: a literal text, and each other escape.
_OTHERS = re.compile(r"\\Q.*?(?:\\E|$)|\\[^C]", re.DOTALL)


def go_pattern_problem(text: str) -> str:
    """Why Go's regexp.Compile refuses `text`; "" if it does not.

    Go's syntax is RE2's without `\\C` (https://pkg.go.dev/regexp/syntax).
    """
    options = re2.Options()
    options.log_errors = False
    try:
        re2.compile(text, options)
    except re2.error as error:
        return str(error.args[0].decode("utf-8", "replace"))
    return r"it has no \C" if r"\C" in _OTHERS.sub("", text) else ""
