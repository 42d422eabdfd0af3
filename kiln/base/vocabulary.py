"""The fixed words and the formats of versions.

The matrix's schema, the flags of `./invoke check`, the rules and the lab all import them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, get_args

Arch = Literal["x86_64", "arm64"]
Flavor = Literal["base", "eks", "ecs", "parallelcluster"]
# In the order in which `check` proposes them.
KernelModule = Literal["open", "proprietary", "both"]
DriverSource = Literal["distro", "runfile", "repo"]
Family = Literal["al", "debian"]
PackageManager = Literal["yum", "dnf", "apt"]

ARCHES: tuple[str, ...] = get_args(Arch)
FLAVORS: tuple[str, ...] = get_args(Flavor)
KERNEL_MODULES: tuple[str, ...] = get_args(KernelModule)
DRIVER_SOURCES: tuple[str, ...] = get_args(DriverSource)

# Debian's and Ubuntu's word for a processor.
DEB_ARCH = {"x86_64": "amd64", "arm64": "arm64"}


@dataclass(frozen=True)
class Form:
    """A text format: its regular expression, and its description in messages."""

    pattern: str
    what: str

    def fits(self, text: str) -> bool:
        """Does the whole text match?"""
        return re.fullmatch(self.pattern, text) is not None


VERSION = Form(r"^\d+(\.\d+)+([-+~.][A-Za-z0-9.]+)*$", "a version such as 1.20.0")
DRIVER = Form(r"^[0-9]{3}(\.[0-9]+)+$", "a version such as 510.47.03")
# Packages and URLs need the full number: CUDA 13.0 is a series, not a release.
RELEASE = Form(r"^[0-9]+\.[0-9]+\.[0-9]+$", "a whole release such as 13.0.2: three numbers")
CUDNN = Form(
    r"^[0-9]+\.[0-9]+\.[0-9]+\.[0-9]+$", "a whole cuDNN release such as 9.24.1.1: four numbers"
)
SERIES_OR_RELEASE = Form(
    r"^[0-9]+\.[0-9]+(\.[0-9]+)?$", "a series or a whole release such as 13.0 or 13.0.2"
)
KUBERNETES = Form(r"^[0-9]+\.[0-9]+$", "a Kubernetes version such as 1.35")
# These reach shells and device tables unquoted.
PACKAGE = Form(r"^[A-Za-z0-9][A-Za-z0-9.+_-]*$", "a kernel series or package such as kernel6.12")
USER = Form(r"^[a-z_][a-z0-9_-]*$", "a user name such as ec2-user")
DEVICE = Form(r"^/dev/[a-z0-9]+$", "a device such as /dev/xvda")
# Part of the names of folders and AMIs.
ID = Form(r"^[a-z][a-z0-9_]*$", "a name of small letters, digits and underscores")
LINE = Form(
    r"^[a-z][a-z0-9_]*(-[a-z0-9_]+)*$",
    "a name of small letters, digits and dashes such as lts-both",
)
INSTANCE_TYPE = Form(r"^[a-z][a-z0-9-]*\.[a-z0-9-]+$", "an instance type such as g4dn.xlarge")

# The schema's formats: regular expression → description, for messages about text that differs.
DESCRIBED = {
    form.pattern: form.what
    for form in (
        VERSION,
        DRIVER,
        RELEASE,
        CUDNN,
        KUBERNETES,
        PACKAGE,
        USER,
        DEVICE,
        ID,
        LINE,
        INSTANCE_TYPE,
    )
}
