"""Code lines per folder, without blank lines, comments and docstrings.

`./invoke lint` prints them, so that a change of size is seen in CI. Templates and shell scripts are
counted without blank lines and comment lines.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter
from pathlib import Path

from devel import scripts
from kiln.base.paths import ROOT

# A line that has nothing but one of these counts as none.
_NO_CODE = {
    tokenize.COMMENT,
    tokenize.NL,
    tokenize.NEWLINE,
    tokenize.INDENT,
    tokenize.DEDENT,
    tokenize.ENDMARKER,
}


def table(root: Path = ROOT) -> str:
    """Return a line per top-level folder: lines of Python, shell and Jinja, number of files."""
    files = scripts.committed(root)
    languages = {
        "python": scripts.files_in_language("python", files, root),
        "shell": scripts.files_in_language("shell", files, root),
        "jinja": [file for file in files if file.endswith(".j2")],
    }
    lines: dict[str, Counter[str]] = {}
    for language, names in languages.items():
        count = python_lines if language == "python" else other_lines
        for name in names:
            folder = lines.setdefault(name.split("/")[0] if "/" in name else ".", Counter())
            folder[language] += count((root / name).read_text(encoding="utf-8"))
            folder["files"] += 1
    columns = (*languages, "files")
    rows = [("code lines", *columns)]
    rows += [(folder, *(str(lines[folder][name]) for name in columns)) for folder in sorted(lines)]
    rows.append(("total", *(str(sum(of[name] for of in lines.values())) for name in columns)))
    return "\n".join(f"{row[0]:<12}" + "".join(f"{cell:>9}" for cell in row[1:]) for row in rows)


def python_lines(text: str) -> int:
    """Return how many lines of a Python file have code on them."""
    code: set[int] = set()
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type not in _NO_CODE:
            code.update(range(token.start[0], token.end[0] + 1))
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            code.difference_update(range(node.lineno, (node.end_lineno or 0) + 1))
    return len(code)


def other_lines(text: str) -> int:
    """Return how many lines of a shell script or template are neither blank nor a comment."""
    lines = (line.strip() for line in text.splitlines())
    return sum(1 for line in lines if line and not line.startswith(("#", "{#")))
