"""Text that a terminal may get: nothing in it moves the cursor, sets colours or turns lines around.

Names and errors come from files, from EC2 and from other programs. A terminal executes escape
sequences in them, and shows text between Unicode's bidirectional controls in another order
(https://trojansource.codes).
"""

from __future__ import annotations

import re

# All control characters but tab and newline (C0, DEL, C1), line separators, the characters that
# change the direction of text, and halves of surrogate pairs, which no encoding takes.
_CONTROL = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
)


def printable(text: object) -> str:
    """The text with each control character as `\\u001b`, which JSON's strings have too."""
    return _CONTROL.sub(lambda match: f"\\u{ord(match.group()):04x}", str(text))
