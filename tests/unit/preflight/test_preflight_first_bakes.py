"""What the vendors' indexes would have said before the first bakes, and preflight with them.

Each case is a mistake that rows really had, or may have, with the index that shows it. The numbers
are those of the reading that found them (issue 14).
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from preflight_vendors import UBUNTU, Edit, Vendors, answers, at, row, signer, vendors, without
from vendor_site import Pkg

from kiln.components.package_repositories import Repository
from kiln.preflight.indexes import State

# The fixtures that tests name.
__all__ = ["signer", "vendors"]

PRODUCTION = "ubuntu2404/production/base/x86_64"
FOCAL = "ubuntu2004/focal_last/base/x86_64"
DEBIAN = "debian12/lts/base/x86_64"
ARM64 = "al2023/lts/base/arm64"


def renamed(old: str, new: str) -> Edit:
    return lambda _, packages: [replace(p, name=new) if p.name == old else p for p in packages]


def needs(name: str, *requires: str) -> Edit:
    return lambda _, packages: [
        replace(p, requires=requires) if p.name == name else p for p in packages
    ]


def in_the_distributions_archive(repository: Repository, packages: list[Pkg]) -> list[Pkg]:
    """Ubuntu's own fabric manager has the wanted name, and is for Ubuntu's own driver."""
    if repository.name != "ubuntu":
        return [p for p in packages if p.name != "nvidia-fabricmanager"]
    own = ("nvidia-open-580", "nvidia-open")
    return [*packages, Pkg("nvidia-fabricmanager", "580.178.04-0ubuntu1", conflicts=own)]


def cudnn_of_amzn2023_only(repository: Repository, packages: list[Pkg]) -> list[Pkg]:
    """amzn2023 has only a newer cuDNN, and the repository of EL 9 lacks the older one too."""
    packages = [p for p in packages if p.name != "libcudnn9-cuda-13"]
    if repository.name == "nvidia-cuda":
        return [*packages, Pkg("libcudnn9-cuda-13", "9.26.0.51-1")]
    return packages


def together(*edits: Edit) -> Edit:
    def edit(repository: Repository, packages: list[Pkg]) -> list[Pkg]:
        for change in edits:
            packages = change(repository, packages)
        return packages

    return edit


@pytest.mark.parametrize(
    ("line", "edit", "problems"),
    [
        pytest.param(
            PRODUCTION,
            together(
                at("libnccl2", "2.30.4-1+cuda13.3"),
                at("nvidia-open", "595.71.05-1ubuntu1"),
                without("datacenter-gpu-manager-4-cuda13"),
            ),
            [
                "libnccl2=2.30.4@cuda13.2: not at 2.30.4 built for cuda13.2; "
                "the nearest published is 2.30.4-1+cuda13.3",
                "nvidia-open=595.91.07: not at 595.91.07; "
                "the nearest published is 595.71.05-1ubuntu1",
                "datacenter-gpu-manager-4-cuda13=4.6.0: no package of this name; "
                "published is datacenter-gpu-manager-4-",
            ],
            id="2-nccl-for-another-cuda-17-driver-in-no-index-18-dcgm-in-other-parts",
        ),
        pytest.param(
            ARM64,
            together(
                cudnn_of_amzn2023_only,
                needs("nvidia-driver-cuda", "kernel-modules-extra"),
                without("dkms"),
            ),
            [
                "libcudnn9-cuda-13=9.25.1.1: not at 9.25.1.1; the nearest published is 9.26.0.51-1",
                "nothing provides kernel-modules-extra",
                "dkms: no package of this name",
            ],
            id="3-cudnn-only-newer-11-module-package-that-nobody-has-16-no-dkms-for-arm64",
        ),
        pytest.param(
            DEBIAN,
            renamed("nvidia-fabricmanager", "nvidia-fabricmanager-580"),
            [
                "nvidia-fabricmanager=580.178.04: no package of this name; "
                "published is nvidia-fabricmanager-580"
            ],
            id="4-name-of-another-branch",
        ),
        pytest.param(
            UBUNTU,
            in_the_distributions_archive,
            ["dependencies do not resolve: nvidia-fabricmanager : Conflicts: nvidia-open-580"],
            id="4-the-distributions-package-conflicts",
        ),
        pytest.param(
            FOCAL,
            at("nvidia-open-570", "570.172.08-0ubuntu1"),
            [
                "nvidia-open-570=570.211.01: not at 570.211.01; "
                "the nearest published is 570.172.08-0ubuntu1"
            ],
            id="20-ubuntu2004-stopped-earlier",
        ),
    ],
)
def test_preflight_finds_what_would_have_stopped_a_first_bake(
    vendors: Vendors, line: str, edit: Edit, problems: list[str]
) -> None:
    vendors.publish(row(line), edit)
    (answer,) = answers(line)
    listed = "\n".join(answer.problems())
    assert [problem for problem in problems if problem not in listed] == []
    assert answer.state is State.MISSING
