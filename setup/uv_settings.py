"""Prints uv's environment for the package index that pip is configured to use.

Input: the output of `pip config list` on stdin, and the process environment.
Output: one NAME=VALUE line per setting that pip has and uv's environment lacks, so that a user's
own UV_ variables win; and the option --no-index, for which uv has no variable, where pip has it.
Sources: https://pip.pypa.io/en/stable/topics/configuration/ and
https://docs.astral.sh/uv/reference/environment/
"""

import ast
import os
import sys
from pathlib import Path

# Where Debian and Ubuntu keep the certificates that an administrator trusts.
SYSTEM_CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")

# pip's option, uv's variable, and uv's separator between values.
VARIABLES = (
    ("index-url", "UV_DEFAULT_INDEX", " "),
    ("extra-index-url", "UV_INDEX", " "),
    ("find-links", "UV_FIND_LINKS", ","),
    ("trusted-host", "UV_INSECURE_HOST", " "),
    ("cert", "SSL_CERT_FILE", " "),
    ("client-cert", "SSL_CLIENT_CERT", " "),
    ("proxy", "ALL_PROXY", " "),
    ("timeout", "UV_HTTP_TIMEOUT", " "),
    ("default-timeout", "UV_HTTP_TIMEOUT", " "),
)
# Later sections override earlier ones, as in pip.
SECTIONS = ("global", "install", ":env:")


def pip_options(listing: str) -> "dict[str, str]":
    """The options that apply to `pip install`, by name, from the lines of `pip config list`."""
    options = {}
    for section in SECTIONS:
        for line in listing.splitlines():
            name, equals, value = line.partition("=")
            if equals and name.startswith(f"{section}."):
                options[name[len(section) + 1 :]] = str(ast.literal_eval(value))
    return options


def uv_environment(options: "dict[str, str]", environment: "dict[str, str]") -> "dict[str, str]":
    """The variables to add to `environment` so that uv uses the index of these pip options."""
    added = {}
    for option, variable, separator in VARIABLES:
        values = options.get(option, "").split()
        if option == "find-links":
            # A missing folder is a warning to pip and an error to uv.
            values = [place for place in values if "://" in place or Path(place).exists()]
        value = separator.join(values)
        if value and variable not in environment:
            added[variable] = value
    if "UV_INDEX" in added:
        # pip searches all indexes; the hashes decide which file is right.
        added["UV_INDEX_STRATEGY"] = "unsafe-best-match"
    if "SSL_CERT_FILE" not in {**environment, **added} and SYSTEM_CERTIFICATES.exists():
        # pip trusts the system's certificates, uv by default a built-in list.
        added["UV_SYSTEM_CERTS"] = "1"
    return added


def no_index(options: "dict[str, str]") -> bool:
    """Whether pip must not use an index, only find-links."""
    return options.get("no-index", "").lower() in ("1", "true", "yes", "on")


if __name__ == "__main__":
    configured = pip_options(sys.stdin.read())
    for name, value in uv_environment(configured, dict(os.environ)).items():
        print(f"{name}={value}")
    if no_index(configured):
        print("--no-index")
