"""Every compatibility rule: what breaks it, at which level, and the nearest that does not."""

from __future__ import annotations

from dataclasses import replace
from datetime import date
from typing import Any

import pytest

from kiln.base.errors import Finding
from kiln.base.recipe import Recipe, SourceAmi, Volume
from kiln.compat import CHECKS, READS_TYPES, TYPE_CHECKS, engine, row_case, rules
from kiln.compat.engine import check_combination, check_recipe
from tests.unit.rows import row

pytestmark = pytest.mark.slow
TODAY = date(2026, 11, 21)
LTS = "580.178.04"
Subject = Recipe | dict[str, Any]


def on(distro: str, driver: str, *types: str, **fields: Any) -> Subject:
    """A combination on the command line."""
    return {"distro": distro, "driver": driver, "instance_types": types, **fields}


def al2023(driver: str = LTS, *types: str, **fields: Any) -> Subject:
    return on("al2023", driver, *types, **fields)


def a_row(*types: str, without: str = "", **fields: Any) -> Subject:
    """A row of Amazon Linux 2023 with some fields changed."""
    recipe = row("al2023/lts/base/x86_64")
    components = tuple(name for name in recipe.components if name != without)
    return recipe.changed(**{"components": components, "target_instance_types": types, **fields})


def volume(flavor: str, size: int, iops: int = 3000, throughput: int = 125) -> Subject:
    return a_row(flavor=flavor, volume=Volume(size=size, iops=iops, throughput=throughput))


def parent(name: str) -> Subject:
    path = f"/aws/service/ami-amazon-linux-latest/{name}-x86_64-gp2"
    return on("al2", "550.163.01", source_ami=SourceAmi(ssm_parameter=path))


def eks(version: str, distro: str = "al2023") -> Subject:
    return on(distro, "550.163.01", flavor="eks", kubernetes=version)


def cluster(distro: str, version: str, driver: str = LTS) -> Subject:
    return on(distro, driver, flavor="parallelcluster", parallelcluster=version)


OLD, MID, NEW = "510.47.03", "550.163.01", "595.91.07"
GB200 = "p6e-gb200.36xlarge"
FABRIC = {"arch": "arm64", "components": ("nvidia-fabricmanager",)}
RUNFILE = {"driver_source": "runfile"}
OPEN, CLOSED = {"kernel_module": "open"}, {"kernel_module": "proprietary"}
E, W = "error", "warning"

# The rule, its level, what breaks it, the nearest that does not.
CASES: list[tuple[str, str, Subject, Subject | None]] = [
    ("DRV-UNKNOWN", E, on("al2", "510.47.3"), on("al2", OLD)),
    ("DRV-EOL", W, al2023("570.211.01"), al2023()),
    ("DRV-EOL", W, on("debian12", "535.309.01"), None),
    ("DRV-BETA", W, on("al2", "550.40.07"), on("al2", MID)),
    ("DRV-MODULE", E, on("al2", OLD, **OPEN), on("al2", "515.86.01", **OPEN)),
    ("DRV-MODULE", E, on("al2", OLD, kernel_module="both"), None),
    ("DRV-CUDA-MAJOR", E, on("al2", OLD, cuda="12.2"), on("al2", "525.60.13", cuda="12.2")),
    ("DRV-CUDA-MAJOR", E, al2023("570.211.01", cuda="13.0"), None),
    ("DRV-CUDA-MINOR", W, al2023("535.183.01", cuda="12.8"), al2023("570.211.01", cuda="12.8")),
    ("DRV-CUDA-MINOR", W, on("al2", "515.86.01", cuda="11.8"), None),
    ("CUDA-UNKNOWN", E, al2023(cuda="12.99"), al2023(cuda="12.9")),
    ("CUDA-UNKNOWN", W, al2023(cuda="99.1"), None),
    ("GPU-KEPLER", E, on("al2", OLD, "p2.xlarge"), on("al2", "470.256.02", "p2.xlarge")),
    ("GPU-VOLTA", E, al2023(NEW, "p3dn.24xlarge"), al2023(LTS, "p3dn.24xlarge")),
    ("GPU-VOLTA", E, al2023(LTS, "p3dn.24xlarge", cuda="13.0"), None),
    ("GPU-OPEN-OLD", E, al2023(LTS, "p3dn.24xlarge", **OPEN),
     al2023(LTS, "p3dn.24xlarge", **CLOSED)),
    ("GPU-BLACKWELL-OPEN", E, al2023("570.211.01", "p6-b300.48xlarge"),
     al2023(LTS, "p6-b300.48xlarge")),
    ("GPU-BLACKWELL-OPEN", E, on("al2", MID, "p6-b200.48xlarge"), None),
    ("GPU-BLACKWELL-OPEN", E, al2023("580.82.07", "g7.12xlarge"), None),
    ("GPU-BLACKWELL-OPEN", E, al2023(NEW, "g7e.2xlarge", **CLOSED), None),
    ("GPU-HOPPER", E, on("al2", "515.86.01", "p5.48xlarge"),
     on("al2", "535.309.01", "p5.48xlarge")),
    # Not known whether the first driver after its architecture's first has it.
    ("GPU-HOPPER", W, on("al2", "520.61.05", "p5.48xlarge"), None),
    ("GPU-MIN", E, on("al2", OLD, "g6.xlarge"), on("al2", "525.147.05", "g6.xlarge")),
    ("GPU-MIN", W, on("ubuntu2204", "530.30.02", "g6e.xlarge"), None),
    ("GPU-OPEN-G", W, al2023(LTS, "g5.8xlarge", **OPEN), al2023(LTS, "g6.8xlarge", **OPEN)),
    ("GPU-OPEN-G", W, al2023(LTS, "g5.xlarge", **OPEN),
     al2023(LTS, "g5.xlarge", kernel_module="both")),
    ("GPU-620", E, al2023("620.70.06", **CLOSED), al2023("620.70.06", **OPEN)),
    ("GPU-620", E, al2023("620.70.06", kernel_module="both"), None),
    ("GPU-620", W, on("ubuntu2404", "615.71.09", **CLOSED), None),
    ("GPU-GRID", E, al2023(LTS, "g6f.xlarge"), al2023(LTS, "g6.xlarge")),
    ("FM-NEEDED", E, a_row("p5.48xlarge", without="nvidia-fabricmanager"),
     a_row("p5.4xlarge", without="nvidia-fabricmanager")),
    ("FM-USELESS", W, a_row("g5.8xlarge"), a_row("g5.8xlarge", "p4d.24xlarge")),
    ("FM-NVLSM", E, a_row("p6-b200.48xlarge", nvlsm=None),
     a_row("p6-b200.48xlarge", nvlsm="2025.10.14")),
    ("FM-NVLSM", W, a_row(nvlsm="2025.99.1"), None),
    ("FM-IMEX", E, a_row(GB200, imex=False, arch="arm64"), a_row(GB200, imex=True, arch="arm64")),
    ("FM-ARCH", E, on("al2", OLD, **FABRIC), on("al2", "515.43.04", **FABRIC)),
    ("OS-EOL", E, on("ubuntu2004", "535.309.01"), on("ubuntu2204", "535.309.01")),
    ("OS-EOL", W, on("ubuntu2004", "535.309.01", extended_support=True), None),
    ("OS-EOL", W, on("al2", OLD), None),
    ("OS-EOL", W, on("debian12", LTS), None),
    ("UNTRIED", W, on("al2", MID, flavor="eks"), on("al2", MID, flavor="ecs")),
    ("UNTRIED", W, on("rocky9", LTS, "p6-b300.48xlarge"), None),
    ("UNTRIED", W, on("ubuntu2004", "535.309.01", arch="arm64"), None),
    ("OS-CUDA-REPO", E, on("al2", MID, cuda="12.8"), on("al2", MID, cuda="12.4.1")),
    ("OS-CUDA-REPO", E, on("ubuntu2404", LTS, cuda="11.8"), None),
    ("OS-CUDA-REPO", E, al2023(LTS, cuda="12.4", arch="arm64"), None),
    ("OS-DRV-REPO", E, on("debian13", LTS, driver_source="repo"),
     on("debian13", NEW, driver_source="repo")),
    ("OS-DRV-REPO", W, on("al2", "570.211.01"), None),
    ("OS-DRV-REPO", E, on("debian12", LTS, driver_source="distro"), None),
    ("OS-ARCH-REPO", W, on("al2", MID, arch="arm64", driver_source="repo"),
     on("al2", MID, arch="arm64", **RUNFILE)),
    ("OS-SSM-KERNEL", W, parent("amzn2-ami-hvm"), parent("amzn2-ami-kernel-5.10-hvm")),
    ("OS-SSM-KERNEL", W, on("ubuntu2404", LTS, kernel="linux-lowlat"), None),
    # Measured; newer than one that fails or builds; with the fix; not on Amazon Linux's kernels.
    ("KERN-BUILD", E, on("ubuntu2204", "580.105.08"), on("ubuntu2204", "580.126.09")),
    ("KERN-BUILD", W, on("ubuntu2204", "580.119.02"), on("ubuntu2204", LTS)),
    ("KERN-BUILD", W, on("debian12", "580.119.02"), on("debian12", "580.126.09")),
    ("KERN-BUILD", W, al2023("570.211.01"), None),
    ("KERN-BUILD", E, on("ubuntu2204", OLD, kernel="linux-aws-lts-22.04"), None),
    ("KERN-BUILD", E, on("ubuntu2404", "580.95.05", kernel="linux-aws-lts-24.04"),
     on("ubuntu2404", "580.126.09", kernel="linux-aws-lts-24.04")),
    # Distributions patch the drivers that they package.
    ("KERN-BUILD", E, on("debian12", "535.261.03", **RUNFILE),
     on("debian12", "535.261.03", driver_source="distro")),
    # It fails on an older kernel already, and was not measured here.
    ("KERN-BUILD", W, on("ubuntu2404", MID, **RUNFILE), on("ubuntu2404", LTS)),
    ("KERN-BUILD", E, on("debian12", MID), on("ubuntu2404", OLD, kernel="linux-lowlat")),
    ("KERN-MIN", E, on("al2", "570.172.08", kernel="4.14", **RUNFILE),
     on("al2", "570.172.08", kernel="5.10", **RUNFILE)),
    ("EFA-OS", E, on("al2", MID, efa="1.50.0"), on("al2", MID, efa="1.49.0")),
    ("EFA-OS", E, on("ubuntu2004", "535.309.01", efa="1.43.0"), None),
    ("EFA-OS", E, al2023("535.309.01", efa="1.24.1"), None),
    ("LIB-UNKNOWN", W, al2023("570.172.08", efa="1.43.9"), al2023("570.172.08", efa="1.43.3")),
    ("EFA-GDR580", E, al2023("580.95.05", efa="1.43.2"), al2023("580.95.05", efa="1.43.3")),
    ("EFA-INSTANCE", W, al2023(LTS, "g5.xlarge", efa="1.51.0"),
     al2023(LTS, "g5.8xlarge", efa="1.51.0")),
    ("EFA-OFI-DOUBLE", W, al2023(efa="1.47.0", ofi_nccl="1.7.4"),
     al2023(efa="1.37.0", ofi_nccl="1.7.4")),
    ("OFI-NCCL", E, on("al2", OLD, efa="1.43.2", nccl="2.12.7"),
     on("al2", OLD, efa="1.34.0", nccl="2.12.7")),
    ("OFI-CUDA13", W, al2023(cuda="13.0", efa="1.43.3"), al2023(cuda="13.0", efa="1.44.0")),
    ("NCCL-CUDA", W, al2023(cuda="12.2", nccl="2.12.7"), al2023(cuda="12.9.1", nccl="2.26.2")),
    # A package serves its whole CUDA major, but only a row knows which one it installs.
    ("NCCL-CUDA", W, al2023(NEW, cuda="13.2.2", nccl="2.30.7"), None),
    ("NCCL-CUDA", E, a_row(driver=NEW, cuda="13.2.2", nccl="2.30.7"),
     a_row(driver=NEW, cuda="13.2.2", nccl="2.30.4")),
    ("NCCL-CUDA", W, a_row(cuda="12.4.1", nccl="2.28.9"), a_row(cuda="12.9.1", nccl="2.28.9")),
    ("NCCL-CUDA", E, al2023(nccl="9.9.9"), None),
    ("CUDNN-CUDA", E, al2023(cuda="11.8", cudnn="9.21.0"), al2023(cuda="12.9", cudnn="9.21.0")),
    ("CUDNN-CUDA", E, al2023(cuda="13.0.2", cudnn="8.9.7.29"), None),
    ("CUDNN-CUDA", W, on("al2", MID, cudnn="9.1.0"), None),
    ("LIB-CUDA", E, a_row(nccl="2.28.9", cuda=None), al2023(nccl="2.28.9")),
    ("LIB-UNKNOWN", W, al2023(gdrcopy="2.9"), al2023(gdrcopy="2.6")),
    ("LIB-UNKNOWN", W, al2023(dcgm="4.99.0"), None),
    ("LIB-UNKNOWN", W, al2023(container_toolkit="1.99.0"), None),
    ("GDR-DRV", E, on("al2", "535.154.05", gdrcopy="2.3.1"),
     on("al2", "535.154.05", gdrcopy="2.4.1")),
    ("DCGM-MAJOR", W, al2023(NEW, dcgm="3.3.9"), al2023(NEW, dcgm="4.6.0")),
    ("DCGM-EXPORTER", E, a_row(dcgm_exporter="4.8.3", dcgm=None),
     al2023(dcgm_exporter="4.8.3", dcgm="4.6.0")),
    ("DCGM-EXPORTER", W, al2023(dcgm_exporter="4.8.3", dcgm="4.7.0"), None),
    ("DCGM-EXPORTER", W, al2023(dcgm_exporter="4.9.0", dcgm="4.7.0"), None),
    ("MIG-LABEL", E, al2023(mig_config="all-1g.7gb"), al2023(mig_config="all-balanced")),
    ("MIG-LABEL", E, a_row("g5.xlarge", mig_config="all-typo"), a_row(mig_config="none")),
    ("MIG-LABEL", W, a_row("g5.xlarge", mig_config="all-1g.5gb"),
     a_row("g5.xlarge", "p4d.24xlarge", mig_config="all-1g.5gb")),
    ("MIG-LABEL", W, a_row("g5.xlarge", mig_config="all-1g.5gb"),
     a_row("g5.xlarge", mig_config="all-disabled")),
    ("MIG-GPU", E, a_row("p5.48xlarge", mig_config="all-1g.5gb"),
     a_row("p4d.24xlarge", "g5.xlarge", mig_config="all-1g.5gb")),
    ("MIG-DRV", E, on("al2", OLD, "p4d.24xlarge", mig_config="all-1g.10gb"),
     on("al2", OLD, "p4d.24xlarge", mig_config="all-1g.5gb")),
    ("MIG-DRV", E, on("al2", "450.51.06", "p4d.24xlarge", mig_config="all-enabled"),
     on("al2", "450.51.06", "p4d.24xlarge", mig_config="all-disabled")),
    ("MIG-CDMM", E, al2023(NEW, GB200, flavor="eks", mig_config="all-enabled"),
     al2023(NEW, GB200, mig_config="all-enabled")),
    ("MIG-EFA", W, al2023(mig_config="all-balanced", efa="1.51.0"),
     al2023(mig_config="all-disabled", efa="1.51.0")),
    ("EKS-OS", E, eks("1.36", "al2"), eks("1.34")),
    ("EKS-OS", E, eks("1.30"), None),
    ("EKS-OS", W, eks("1.99"), None),
    ("EKS-OS", E, eks("1.35", "debian12"), None),
    ("EKS-OS", E, a_row(flavor="eks"), al2023(flavor="eks")),
    ("ECS-ARM", E, al2023(flavor="ecs", arch="arm64"), al2023(flavor="ecs")),
    ("PC-OS", E, cluster("ubuntu2404", "3.12.0"), cluster("ubuntu2404", "3.13.0")),
    ("PC-OS", E, cluster("ubuntu2004", "3.14.0"), None),
    ("PC-OS", W, cluster("al2023", "9.9.9"), None),
    ("PC-OS", E, a_row(flavor="parallelcluster"), al2023(flavor="parallelcluster")),
    ("PC-EFA-DUP", W, cluster("al2023", "3.16.3", "535.309.01"),
     cluster("al2023", "3.16.3", "595.112.07")),
    ("VOL-PARENT", E, volume("ecs", 29), volume("ecs", 30)),
    ("VOL-PARENT", E, volume("eks", 19), volume("eks", 20)),
    ("VOL-PARENT", E, volume("parallelcluster", 44), volume("parallelcluster", 45)),
    ("VOL-PACKER", W, volume("base", 100, iops=16001), volume("base", 100, 16000, 1000)),
    ("VOL-PACKER", W, volume("base", 100, iops=16000, throughput=1001), None),
    ("ARCH-INSTANCE", E, al2023(LTS, "g5g.xlarge", arch="x86_64"), al2023(LTS, "g5g.xlarge")),
    ("ARCH-INSTANCE", E, al2023(LTS, "p5.48xlarge", arch="arm64"), None),
    ("ARCH-BUILD", E, a_row(instance_type="g5g.xlarge"), a_row(instance_type="g4dn.xlarge")),
    ("BUILD-INSTANCE", W, a_row(instance_type="r5n.12xlarge"), a_row(instance_type="g4dn.xlarge")),
    ("BUILD-INSTANCE", W, a_row(verify_instance_type="p3dn.24xlarge"), None),
    ("INST-GONE", W, on("al2", MID, "p3.2xlarge"), on("al2", MID, "p3dn.24xlarge")),
]  # fmt: skip


def findings(subject: Subject, rule: str = "") -> list[Finding]:
    """What `check` finds on a row or a combination, by one rule or all."""
    if isinstance(subject, Recipe):
        found = check_recipe(subject, today=TODAY)
    else:
        answer = check_combination(**subject, today=TODAY)
        found = [Finding(**each) for each in answer["findings"]]
    return [finding for finding in found if rule in ("", finding.rule)]


def ways_out(hint: str) -> list[dict[str, str]]:
    """The changes a hint names as working: `driver 580.178.04, or CUDA 12.9.1`."""
    _, _, text = hint.partition("nearest that works: ")
    ways = [way.split(" ") for way in text.split(", or ") if way]
    return [{name.lower(): value} for name, value in ways]


@pytest.mark.parametrize(
    ("rule", "level", "broken", "sound"), CASES, ids=[f"{r}-{n}" for n, (r, *_) in enumerate(CASES)]
)
def test_rule_objects_at_its_level_with_a_hint_that_works(
    rule: str, level: str, broken: Subject, sound: Subject | None
) -> None:
    every = findings(broken)
    found = [finding for finding in every if finding.rule == rule]
    assert {finding.level for finding in found} == {level}
    assert all(finding.source and finding.hint for finding in found)
    assert sound is None or not findings(sound, rule)
    for change in [change for finding in every for change in ways_out(finding.hint)]:
        changed = broken.changed(**change) if isinstance(broken, Recipe) else {**broken, **change}
        assert not [each for each in findings(changed) if each.level == "error"], change


def test_errors_that_a_driver_or_cuda_fixes_name_one() -> None:
    cases = [(rule, case) for rule, level, case, _ in CASES if rules()[rule].moves and level == E]
    hints = [finding.hint for rule, case in cases for finding in findings(case, rule)]
    assert len([hint for hint in hints if ways_out(hint)]) >= 0.9 * len(hints) > 15


class Untouchable:
    def __iter__(self):
        raise AssertionError("it looks at the instance types")

    __bool__ = __len__ = __iter__


def test_rule_that_reads_instance_types_is_asked_per_type() -> None:
    # The others decide once for all types: they must not look.
    seen = set()
    for _, _, broken, _ in CASES:
        if isinstance(broken, dict):
            distro, values = broken["distro"], {**broken}
            del values["distro"], values["instance_types"]
            case = engine.combination_case(distro, values, (), TODAY)
        else:
            case = row_case(broken, TODAY)
        case = replace(case, types=Untouchable())
        for rule in CHECKS.keys() - READS_TYPES:
            seen |= {rule for _ in CHECKS[rule](case.recipe, case)}
    assert len(seen) > 25


def test_every_rule_has_a_check_and_a_case() -> None:
    assert set(rules()) == {*CHECKS, *TYPE_CHECKS} == {rule for rule, *_ in CASES}
