"""Would Go's regular expressions (RE2) take a pattern of the agent's configuration?

Python's are near enough once the differences are translated: RE2 has no look-around and no
back-references, and it has a few forms that Python lacks.
"""

from __future__ import annotations

import re

# What RE2 refuses and Python takes.
_REFUSED = {
    r"(?<!\\)\(\?(<?[=!])": "it has no look-ahead or look-behind",
    r"(?<!\\)\(\?>": "it has no atomic groups",
    r"(?<!\\)\(\?P=": "it has no back-references",
    r"(?<!\\)\(\?\(": "it has no conditions",
    r"(?<!\\)\(\?#": "it has no comments",
    r"\\[1-9]": "it has no back-references",
    r"\\[uC]": "it has no \\u and no \\C",
    r"\\Z": r"it has no \Z; the end of the text is \z",
    r"(?<=[*+?}])\+": "it has no possessive repetitions",
}
# What RE2 takes and Python refuses or reads in another way, with something alike.
_ALIKE = (
    (r"\\Q(.*?)(?:\\E|$)", lambda match: re.escape(match[1])),
    (r"\[\[:\^?\w+:\]", "[a"),
    (r"\[:\^?\w+:\]", "a"),
    (r"\\[pP](\{\^?\w+\}|\w)", "a"),
    (r"\\z|(?<!\\)[$^](?=[*+?{])", "a"),
    (r"(?<!\\)\(\?<(?![=!])", "(?P<"),
    (r"(?<!\\)\(\?[imsU]*(-[imsU]+)?\)", ""),
    (r"(?<!\\)\(\?[imsU]*(-[imsU]+)?:", "(?:"),
    (r"\\x\{[0-9A-Fa-f]+\}", "a"),
    (r"\\a", "a"),
)
_LARGEST_REPETITION = 1000


def go_pattern_problem(text: str) -> str:
    """Why Go's regexp.Compile refuses `text`; "" if it does not.

    https://github.com/google/re2/wiki/Syntax
    """
    bare = re.sub(r"\\\\", "a", text)
    outside = re.sub(r"\[\^?\]?[^\]]*\]", "", bare)
    if re.search(r"\[[^\]]*\\[1-9]", bare):
        return "a class has no octal numbers"
    for pattern, reason in _REFUSED.items():
        if re.search(pattern, outside):
            return reason
    for number in re.findall(r"\{(\d+)(?:,\d*)?\}|\{\d+,(\d+)\}", outside):
        if any(int(digits) > _LARGEST_REPETITION for digits in number if digits):
            return f"it repeats at most {_LARGEST_REPETITION} times"
    alike = bare
    for pattern, instead in _ALIKE:
        alike = re.sub(pattern, instead, alike)
    try:
        re.compile(alike)
    except (re.error, RecursionError, OverflowError) as error:
        return str(error)
    return ""
