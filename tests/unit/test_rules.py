"""Every compatibility rule: one combination it lets pass, one it does not."""

from dataclasses import replace
from datetime import date

import pytest

from kiln.base.recipe import Volume
from kiln.compat import alternatives
from kiln.compat.engine import check_combination
from kiln.compat.rules.combination import Combination
from kiln.compat.rules.registry import BY_INSTANCE_TYPE, CHECKS, INSTANCE_CHECKS, rules

TODAY = date(2026, 11, 21)

# rule → (a combination that breaks it, the nearest one that does not)
CASES = {
    "DRV-UNKNOWN": (
        {"distro": "al2", "driver": "510.47.3"},
        {"distro": "al2", "driver": "510.47.03"},
    ),
    "DRV-EOL": (
        {"distro": "al2023", "driver": "570.211.01"},
        {"distro": "al2023", "driver": "580.178.04"},
    ),
    "DRV-BETA": (
        {"distro": "al2", "driver": "550.40.07"},
        {"distro": "al2", "driver": "550.163.01"},
    ),
    "DRV-MODULE": (
        {"distro": "al2", "driver": "510.47.03", "kernel_module": "open"},
        {"distro": "al2", "driver": "515.86.01", "kernel_module": "open"},
    ),
    "DRV-CUDA-MAJOR": (
        {"distro": "al2", "driver": "510.47.03", "cuda": "12.2"},
        {"distro": "al2", "driver": "525.60.13", "cuda": "12.2"},
    ),
    "DRV-CUDA-MINOR": (
        {"distro": "al2023", "driver": "535.183.01", "cuda": "12.8"},
        {"distro": "al2023", "driver": "570.211.01", "cuda": "12.8"},
    ),
    "CUDA-UNKNOWN": (
        {"distro": "al2023", "driver": "580.178.04", "cuda": "12.99"},
        {"distro": "al2023", "driver": "580.178.04", "cuda": "12.9"},
    ),
    "LIB-UNKNOWN": (
        {"distro": "al2023", "driver": "580.178.04", "gdrcopy": "2.9"},
        {"distro": "al2023", "driver": "580.178.04", "gdrcopy": "2.6"},
    ),
    "GPU-KEPLER": (
        {"distro": "al2", "driver": "510.47.03", "instance_type": "p2.xlarge"},
        {"distro": "al2", "driver": "470.256.02", "instance_type": "p2.xlarge"},
    ),
    "GPU-VOLTA": (
        {"distro": "al2023", "driver": "595.91.07", "instance_type": "p3dn.24xlarge"},
        {"distro": "al2023", "driver": "580.178.04", "instance_type": "p3dn.24xlarge"},
    ),
    "GPU-OPEN-OLD": (
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "instance_type": "p3dn.24xlarge",
            "kernel_module": "open",
        },
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "instance_type": "p3dn.24xlarge",
            "kernel_module": "proprietary",
        },
    ),
    "GPU-BLACKWELL-OPEN": (
        {"distro": "al2023", "driver": "570.211.01", "instance_type": "p6-b300.48xlarge"},
        {"distro": "al2023", "driver": "580.178.04", "instance_type": "p6-b300.48xlarge"},
    ),
    "GPU-HOPPER": (
        {"distro": "al2", "driver": "515.86.01", "instance_type": "p5.48xlarge"},
        {"distro": "al2", "driver": "535.309.01", "instance_type": "p5.48xlarge"},
    ),
    "GPU-MIN": (
        {"distro": "al2", "driver": "510.47.03", "instance_type": "g6.xlarge"},
        {"distro": "al2", "driver": "525.147.05", "instance_type": "g6.xlarge"},
    ),
    "GPU-OPEN-G": (
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "instance_type": "g5.8xlarge",
            "kernel_module": "open",
        },
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "instance_type": "g6.8xlarge",
            "kernel_module": "open",
        },
    ),
    "GPU-620": (
        {"distro": "al2023", "driver": "620.70.06", "kernel_module": "proprietary"},
        {"distro": "al2023", "driver": "620.70.06", "kernel_module": "open"},
    ),
    "GPU-GRID": (
        {"distro": "al2023", "driver": "580.178.04", "instance_type": "g6f.xlarge"},
        {"distro": "al2023", "driver": "580.178.04", "instance_type": "g6.xlarge"},
    ),
    "FM-NEEDED": (
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "instance_type": "p5.48xlarge",
            "fabric_manager": False,
        },
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "instance_type": "p5.4xlarge",
            "fabric_manager": False,
        },
    ),
    "FM-USELESS": (
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "instance_type": "g5.8xlarge",
            "fabric_manager": True,
        },
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "instance_type": "p4d.24xlarge",
            "fabric_manager": True,
        },
    ),
    "FM-NVLSM": (
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "instance_type": "p6-b200.48xlarge",
            "fabric_manager": True,
            "nvlsm": False,
        },
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "instance_type": "p6-b200.48xlarge",
            "fabric_manager": True,
            "nvlsm": True,
        },
    ),
    "FM-IMEX": (
        {
            "distro": "al2023",
            "driver": "595.91.07",
            "instance_type": "p6e-gb200.36xlarge",
            "imex": False,
        },
        {
            "distro": "al2023",
            "driver": "595.91.07",
            "instance_type": "p6e-gb200.36xlarge",
            "imex": True,
        },
    ),
    "FM-NAME": (
        {
            "distro": "al2023",
            "driver": "570.172.08",
            "packages": ("nvidia-fabricmanager-570.172.08",),
        },
        {
            "distro": "al2023",
            "driver": "570.172.08",
            "packages": ("nvidia-fabric-manager-570.172.08",),
        },
    ),
    "FM-ARCH": (
        {"distro": "al2", "driver": "510.47.03", "arch": "arm64", "fabric_manager": True},
        {"distro": "al2", "driver": "515.43.04", "arch": "arm64", "fabric_manager": True},
    ),
    "FM-OLDARCHIVE": (
        {
            "distro": "al2",
            "driver": "460.91.03",
            "downloads": ("https://x/fabricmanager-linux-x86_64-460.91.03-archive.tar.xz",),
        },
        {
            "distro": "al2",
            "driver": "470.57.02",
            "downloads": ("https://x/fabricmanager-linux-x86_64-470.57.02-archive.tar.xz",),
        },
    ),
    "OS-EOL": (
        {"distro": "ubuntu2004", "driver": "535.309.01"},
        {"distro": "ubuntu2204", "driver": "535.309.01"},
    ),
    "UNTRIED": (
        {"distro": "al2", "driver": "550.163.01", "flavor": "eks"},
        {"distro": "al2", "driver": "550.163.01", "flavor": "ecs"},
    ),
    "OS-CUDA-REPO": (
        {"distro": "al2", "driver": "550.163.01", "cuda": "12.8"},
        {"distro": "al2", "driver": "550.163.01", "cuda": "12.4.1"},
    ),
    "OS-DRV-REPO": (
        {"distro": "debian13", "driver": "580.178.04", "driver_source": "repo"},
        {"distro": "debian13", "driver": "595.91.07", "driver_source": "repo"},
    ),
    "OS-ARCH-REPO": (
        {"distro": "al2", "driver": "550.163.01", "arch": "arm64", "driver_source": "repo"},
        {"distro": "al2", "driver": "550.163.01", "arch": "arm64", "driver_source": "runfile"},
    ),
    "OS-SSM-KERNEL": (
        {
            "distro": "al2",
            "driver": "550.163.01",
            "ssm_parameter": "/aws/service/ami-amazon-linux-latest/amzn2-ami-hvm-x86_64-gp2",
        },
        {
            "distro": "al2",
            "driver": "550.163.01",
            "ssm_parameter": "/aws/service/ami-amazon-linux-latest/"
            "amzn2-ami-kernel-5.10-hvm-x86_64-gp2",
        },
    ),
    "KERN-BUILD": (
        {"distro": "ubuntu2204", "driver": "570.211.01"},
        {"distro": "ubuntu2204", "driver": "580.126.09"},
    ),
    "KERN-MIN": (
        {"distro": "al2", "driver": "570.172.08", "kernel": "4.14", "driver_source": "runfile"},
        {"distro": "al2", "driver": "570.172.08", "kernel": "5.10", "driver_source": "runfile"},
    ),
    "KERN-HEADERS": (
        {"distro": "al2023", "driver": "580.178.04", "reboots_into_kernel": False},
        {"distro": "al2023", "driver": "580.178.04", "reboots_into_kernel": True},
    ),
    "EFA-OS": (
        {"distro": "al2", "driver": "550.163.01", "efa": "1.50.0"},
        {"distro": "al2", "driver": "550.163.01", "efa": "1.49.0"},
    ),
    "EFA-LATEST": (
        {"distro": "al2", "driver": "550.163.01", "efa": "latest"},
        {"distro": "al2", "driver": "550.163.01", "efa": "1.49.0"},
    ),
    "EFA-UNKNOWN": (
        {"distro": "al2023", "driver": "570.172.08", "efa": "1.43.9"},
        {"distro": "al2023", "driver": "570.172.08", "efa": "1.43.3"},
    ),
    "EFA-GDR580": (
        {"distro": "al2023", "driver": "580.95.05", "efa": "1.43.2"},
        {"distro": "al2023", "driver": "580.95.05", "efa": "1.43.3"},
    ),
    "EFA-INSTANCE": (
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "efa": "1.51.0",
            "instance_type": "g5.xlarge",
        },
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "efa": "1.51.0",
            "instance_type": "g5.8xlarge",
        },
    ),
    "EFA-OFI-DOUBLE": (
        {"distro": "al2023", "driver": "580.178.04", "efa": "1.47.0", "ofi_nccl": "1.7.4"},
        {"distro": "al2023", "driver": "580.178.04", "efa": "1.37.0", "ofi_nccl": "1.7.4"},
    ),
    "OFI-NCCL": (
        {"distro": "al2", "driver": "510.47.03", "efa": "1.43.2", "nccl": "2.12.7"},
        {"distro": "al2", "driver": "510.47.03", "efa": "1.34.0", "nccl": "2.12.7"},
    ),
    "OFI-CUDA13": (
        {"distro": "al2023", "driver": "580.178.04", "cuda": "13.0", "efa": "1.43.3"},
        {"distro": "al2023", "driver": "580.178.04", "cuda": "13.0", "efa": "1.44.0"},
    ),
    "NCCL-CUDA": (
        {"distro": "al2", "driver": "535.309.01", "packages": ("libnccl=2.30.7-1+cuda13.2",)},
        {"distro": "al2", "driver": "535.309.01", "packages": ("libnccl=2.30.4-1+cuda13.2",)},
    ),
    "CUDNN-CUDA": (
        {"distro": "al2023", "driver": "580.178.04", "cuda": "11.8", "cudnn": "9.21.0"},
        {"distro": "al2023", "driver": "580.178.04", "cuda": "12.9", "cudnn": "9.21.0"},
    ),
    "LIB-CUDA": (
        {"distro": "al2023", "driver": "580.178.04", "nccl": "2.28.9", "complete": True},
        {"distro": "al2023", "driver": "580.178.04", "nccl": "2.28.9"},
    ),
    "MIG-LABEL": (
        {"distro": "al2023", "driver": "580.178.04", "mig_label": "all-1g.7gb"},
        {"distro": "al2023", "driver": "580.178.04", "mig_label": "all-balanced"},
    ),
    "GDR-DRV": (
        {"distro": "al2", "driver": "535.154.05", "gdrcopy": "2.3.1"},
        {"distro": "al2", "driver": "535.154.05", "gdrcopy": "2.4.1"},
    ),
    "MIG-GPU": (
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "mig": ("1g.5gb",),
            "instance_type": "p4de.24xlarge",
        },
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "mig": ("1g.10gb",),
            "instance_type": "p4de.24xlarge",
        },
    ),
    "MIG-LAYOUT": (
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "mig": ("3g.20gb", "3g.20gb", "1g.5gb"),
            "instance_type": "p4d.24xlarge",
        },
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "mig": ("3g.20gb", "3g.20gb"),
            "instance_type": "p4d.24xlarge",
        },
    ),
    "MIG-DRV": (
        {
            "distro": "al2023",
            "driver": "570.124.06",
            "mig": ("1g.23gb",),
            "instance_type": "p6-b200.48xlarge",
        },
        {
            "distro": "al2023",
            "driver": "570.133.20",
            "mig": ("1g.23gb",),
            "instance_type": "p6-b200.48xlarge",
        },
    ),
    "MIG-CDMM": (
        {
            "distro": "al2023",
            "driver": "595.91.07",
            "flavor": "eks",
            "arch": "arm64",
            "mig_label": "all-enabled",
            "instance_type": "p6e-gb200.36xlarge",
        },
        {
            "distro": "al2023",
            "driver": "595.91.07",
            "flavor": "base",
            "arch": "arm64",
            "mig_label": "all-enabled",
            "instance_type": "p6e-gb200.36xlarge",
        },
    ),
    "MIG-EFA": (
        {"distro": "al2023", "driver": "580.178.04", "mig": ("1g.10gb",), "efa": "1.51.0"},
        {"distro": "al2023", "driver": "580.178.04", "mig": ("1g.10gb",)},
    ),
    "EKS-OS": (
        {"distro": "al2", "driver": "550.163.01", "flavor": "eks", "kubernetes": "1.33"},
        {"distro": "al2023", "driver": "580.159.03", "flavor": "eks", "kubernetes": "1.34"},
    ),
    "VOL-PARENT": (
        {"distro": "al2023", "flavor": "ecs", "volume": Volume(size=29)},
        {"distro": "al2023", "flavor": "ecs", "volume": Volume(size=30)},
    ),
    "VOL-PACKER": (
        {"distro": "al2023", "volume": Volume(size=100, iops=16001)},
        {"distro": "al2023", "volume": Volume(size=100, iops=16000, throughput=1000)},
    ),
    "ECS-ARM": (
        {"distro": "al2023", "driver": "580.159.03", "flavor": "ecs", "arch": "arm64"},
        {"distro": "al2023", "driver": "580.159.03", "flavor": "ecs", "arch": "x86_64"},
    ),
    "PC-OS": (
        {
            "distro": "ubuntu2404",
            "driver": "580.178.04",
            "flavor": "parallelcluster",
            "parallelcluster": "3.12.0",
        },
        {
            "distro": "ubuntu2404",
            "driver": "580.178.04",
            "flavor": "parallelcluster",
            "parallelcluster": "3.13.0",
        },
    ),
    "PC-EFA-DUP": (
        {
            "distro": "al2023",
            "driver": "535.309.01",
            "flavor": "parallelcluster",
            "parallelcluster": "3.16.3",
        },
        {
            "distro": "al2023",
            "driver": "595.112.07",
            "flavor": "parallelcluster",
            "parallelcluster": "3.16.3",
        },
    ),
    "NCT-REPO": (
        {"distro": "al2023", "driver": "580.178.04", "packages": ("nvidia-docker2",)},
        {"distro": "al2023", "driver": "580.178.04", "packages": ("nvidia-container-toolkit",)},
    ),
    "DCGM-MAJOR": (
        {
            "distro": "al2023",
            "driver": "570.211.01",
            "packages": ("datacenter-gpu-manager-4-cuda13",),
        },
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "packages": ("datacenter-gpu-manager-4-cuda13",),
        },
    ),
    "DCGM-EXPORTER": (
        {"distro": "al2023", "driver": "580.178.04", "dcgm_exporter": "4.8.3", "complete": True},
        {"distro": "al2023", "driver": "580.178.04", "dcgm_exporter": "4.8.3", "dcgm": "4.6.0"},
    ),
    "ARCH-INSTANCE": (
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "arch": "x86_64",
            "instance_type": "g5g.xlarge",
        },
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "arch": "arm64",
            "instance_type": "g5g.xlarge",
        },
    ),
    "ARCH-BUILD": (
        {"distro": "al2023", "driver": "580.178.04", "build_instances": ("g5g.xlarge",)},
        {"distro": "al2023", "driver": "580.178.04", "build_instances": ("g4dn.xlarge",)},
    ),
    "INST-GONE": (
        {"distro": "al2", "driver": "550.163.01", "instance_type": "p3.2xlarge"},
        {"distro": "al2", "driver": "550.163.01", "instance_type": "p3dn.24xlarge"},
    ),
    "BUILD-INSTANCE": (
        {"distro": "al2023", "driver": "580.178.04", "build_instances": ("r5n.12xlarge",)},
        {"distro": "al2023", "driver": "580.178.04", "build_instances": ("g4dn.xlarge",)},
    ),
    "PIN-LATEST": (
        {"distro": "al2023", "driver": "580.178.04", "dcgm": "latest"},
        {"distro": "al2023", "driver": "580.178.04", "dcgm": "4.7.0"},
    ),
}

# The other clashes a rule names, beyond the one above.
MORE = [
    ("DRV-CUDA-MAJOR", {"distro": "al2023", "driver": "570.211.01", "cuda": "13.0"}),
    ("DRV-CUDA-MINOR", {"distro": "al2", "driver": "515.86.01", "cuda": "11.8"}),
    ("DRV-EOL", {"distro": "al2", "driver": "510.47.03"}),
    ("DRV-EOL", {"distro": "debian12", "driver": "535.309.01"}),
    (
        "GPU-VOLTA",
        {
            "distro": "al2023",
            "driver": "580.178.04",
            "cuda": "13.0",
            "instance_type": "p3dn.24xlarge",
        },
    ),
    (
        "GPU-BLACKWELL-OPEN",
        {"distro": "al2", "driver": "550.163.01", "instance_type": "p6-b200.48xlarge"},
    ),
    (
        "GPU-BLACKWELL-OPEN",
        {"distro": "al2023", "driver": "580.82.07", "instance_type": "g7.12xlarge"},
    ),
    (
        "GPU-BLACKWELL-OPEN",
        {
            "distro": "al2023",
            "driver": "595.91.07",
            "kernel_module": "proprietary",
            "instance_type": "g7e.2xlarge",
        },
    ),
    ("GPU-620", {"distro": "ubuntu2404", "driver": "615.71.09", "kernel_module": "proprietary"}),
    ("GPU-620", {"distro": "al2023", "driver": "620.70.06", "kernel_module": "both"}),
    ("DRV-MODULE", {"distro": "al2", "driver": "510.47.03", "kernel_module": "both"}),
    ("FM-NVLSM", {"distro": "al2023", "driver": "580.178.04", "packages": ("nvlsm=2025.99.1",)}),
    ("UNTRIED", {"distro": "rocky9", "driver": "580.178.04", "instance_type": "p6-b300.48xlarge"}),
    ("UNTRIED", {"distro": "ubuntu2004", "driver": "535.309.01", "arch": "arm64"}),
    ("OS-EOL", {"distro": "al2", "driver": "510.47.03"}),
    ("OS-EOL", {"distro": "debian12", "driver": "580.178.04"}),
    ("OS-CUDA-REPO", {"distro": "ubuntu2404", "driver": "580.178.04", "cuda": "11.8"}),
    (
        "OS-CUDA-REPO",
        {"distro": "al2023", "driver": "580.178.04", "cuda": "12.4", "arch": "arm64"},
    ),
    ("OS-DRV-REPO", {"distro": "al2", "driver": "570.211.01"}),
    ("OS-SSM-KERNEL", {"distro": "ubuntu2404", "driver": "580.178.04", "kernel": "linux-lowlat"}),
    ("KERN-BUILD", {"distro": "debian12", "driver": "550.163.01"}),
    (
        "KERN-BUILD",
        {"distro": "debian12", "driver": "550.163.01", "kernel": "linux-image-cloud-amd64"},
    ),
    ("KERN-BUILD", {"distro": "debian12", "driver": "580.95.05"}),
    ("KERN-BUILD", {"distro": "ubuntu2204", "driver": "510.47.03"}),
    (
        "KERN-BUILD",
        {"distro": "ubuntu2204", "driver": "510.47.03", "kernel": "linux-aws-lts-22.04"},
    ),
    ("EFA-OS", {"distro": "ubuntu2004", "driver": "535.309.01", "efa": "1.43.0"}),
    ("EFA-OS", {"distro": "al2023", "driver": "535.309.01", "efa": "1.24.1"}),
    ("EFA-OS", {"distro": "ubuntu2404", "driver": "580.178.04", "efa": "1.32.0"}),
    ("EFA-OS", {"distro": "debian12", "driver": "580.178.04", "efa": "1.35.0"}),
    ("NCCL-CUDA", {"distro": "al2023", "driver": "580.178.04",
                   "packages": ("libnccl=2.28.9@cuda12.4",)}),
    ("NCCL-CUDA", {"distro": "al2", "driver": "535.309.01",
                   "packages": ("libnccl2=2.12.7-1+cuda12.2",)}),
    ("NCCL-CUDA", {"distro": "al2023", "driver": "580.178.04", "cuda": "12.2", "nccl": "2.12.7"}),
    ("CUDNN-CUDA", {"distro": "al2", "driver": "550.163.01", "cudnn": "9.1.0"}),
    (
        "CUDNN-CUDA",
        {"distro": "al2023", "driver": "580.178.04", "cuda": "13.0", "packages": ("libcudnn8",)},
    ),
    ("MIG-GPU", {"distro": "al2023", "driver": "580.178.04", "mig": ("1g.5gb",),
                 "instance_type": "g5.12xlarge"}),
    ("MIG-GPU", {"distro": "al2023", "driver": "580.178.04", "mig": ("1g.10gb",),
                 "instance_type": "p5e.48xlarge"}),
    ("MIG-DRV", {"distro": "al2023", "driver": "535.309.01", "mig": ("1g.18gb",),
                 "instance_type": "p5e.48xlarge"}),
    ("MIG-DRV", {"distro": "al2023", "driver": "580.76.05", "mig": ("1g.34gb",),
                 "instance_type": "p6-b300.48xlarge"}),
    ("MIG-LAYOUT", {"distro": "al2023", "driver": "580.178.04", "mig": ("4g.20gb", "4g.20gb"),
                    "instance_type": "p4d.24xlarge"}),
    ("EKS-OS", {"distro": "al2023", "driver": "580.159.03", "flavor": "eks",
                "kubernetes": "1.30"}),
    ("VOL-PARENT", {"distro": "al2023", "flavor": "eks", "volume": Volume(size=19)}),
    ("VOL-PARENT", {"distro": "al2023", "flavor": "parallelcluster", "volume": Volume(size=44)}),
    ("VOL-PACKER", {"distro": "al2023", "volume": Volume(size=100, iops=16000, throughput=1001)}),
    ("PC-OS", {"distro": "ubuntu2004", "driver": "535.309.01", "flavor": "parallelcluster",
               "parallelcluster": "3.14.0"}),
    ("DCGM-MAJOR", {"distro": "al2023", "driver": "595.91.07", "dcgm": "3.3.9",
                    "instance_type": "p6-b200.48xlarge"}),
    ("DCGM-EXPORTER", {"distro": "al2023", "driver": "580.178.04", "dcgm_exporter": "4.8.3",
                       "dcgm": "4.7.0"}),
    ("DCGM-EXPORTER", {"distro": "al2023", "driver": "580.178.04", "dcgm_exporter": "4.9.0",
                       "dcgm": "4.7.0"}),
    ("ARCH-INSTANCE", {"distro": "al2023", "driver": "580.178.04", "arch": "arm64",
                       "instance_type": "p5.48xlarge"}),
    ("PIN-LATEST", {"distro": "al2", "driver": "550.163.01", "efa": "latest"}),
    ("PC-OS", {"distro": "al2023", "driver": "580.178.04", "flavor": "parallelcluster",
               "parallelcluster": "9.9.9"}),
    ("LIB-UNKNOWN", {"distro": "al2023", "driver": "580.178.04", "dcgm": "4.99.0"}),
    ("LIB-UNKNOWN", {"distro": "al2023", "driver": "580.178.04", "container_toolkit": "1.99.0"}),
    ("DCGM-MAJOR", {"distro": "al2023", "driver": "580.178.04",
                    "packages": ("datacenter-gpu-manager-4-cuda12",)}),
]  # fmt: skip


def findings(case, rule):
    result = check_combination(**case, today=TODAY)
    return [finding for finding in result["findings"] if finding["rule"] == rule]


@pytest.mark.parametrize("rule", CASES)
def test_the_rule_reports_its_case_and_nothing_else(rule):
    broken, sound = CASES[rule]
    found = findings(broken, rule)
    assert found
    assert found[0]["message"]
    assert found[0]["source"]
    assert not findings(sound, rule)


@pytest.mark.parametrize("rule", CASES)
def test_the_level_is_the_rules_unless_its_facts_are_unconfirmed(rule):
    expected = rules()[rule].level if rules()[rule].confirmed else "warning"
    levels = {finding["level"] for finding in findings(CASES[rule][0], rule)}
    if rule == "EFA-LATEST":  # on AL2, which the newest installer refuses
        expected = "error"
    assert expected in levels
    assert expected == "error" or levels == {"warning"}


@pytest.mark.parametrize(("rule", "case"), MORE)
def test_the_rule_knows_its_other_clashes(rule, case):
    assert findings(case, rule)


FIELDS = {shown.strip(":"): name for name, shown in alternatives._SHOWN.items()}


def ways_out(hint):
    """The changes a hint names as working: `driver 580.178.04, or CUDA 12.9.1 with EFA 1.51.0`."""
    _, found, text = hint.partition("nearest that works: ")
    for way in text.split(", or ") if found else ():
        change = {}
        for part in way.split(" with "):
            name, value = part.rsplit(" ", 1)
            change[FIELDS.get(name.strip(":"), name.strip(":"))] = value
        yield change


@pytest.mark.parametrize(("rule", "case"), [*((r, c[0]) for r, c in CASES.items()), *MORE])
def test_what_a_hint_calls_working_works(rule, case):
    for finding in check_combination(**case, today=TODAY)["findings"]:
        for change in ways_out(finding["hint"]):
            again = check_combination(**{**case, **change}, today=TODAY)
            assert not [finding for finding in again["findings"] if finding["level"] == "error"], (
                change
            )
            assert finding["message"] not in {finding["message"] for finding in again["findings"]}


def test_most_errors_that_another_version_fixes_name_it():
    hints = [
        finding["hint"]
        for rule, (broken, _) in CASES.items()
        if rules()[rule].moves
        for finding in findings(broken, rule)
        if finding["level"] == "error"
    ]
    assert len([hint for hint in hints if list(ways_out(hint))]) >= 0.9 * len(hints) > 15


def test_dcgm_of_an_older_cuda_is_advised_against_and_of_a_newer_one_refused():
    older = {"distro": "al2023", "driver": "580.178.04"}
    newer = {"distro": "al2023", "driver": "570.211.01"}
    for case, major, level in ((older, 12, "warning"), (newer, 13, "error")):
        package = f"datacenter-gpu-manager-4-cuda{major}"
        (found,) = findings({**case, "packages": (package,)}, "DCGM-MAJOR")
        assert found["level"] == level


@pytest.mark.parametrize("rule", CASES)
def test_every_finding_says_what_to_do(rule):
    for finding in findings(CASES[rule][0], rule):
        # What EC2 no longer offers, nobody can mend; DRV-EOL names the branches that live.
        assert finding["hint"] or rule in {"INST-GONE", "DRV-EOL", "DRV-CUDA-COMPAT"}


class Untouchable:
    def __iter__(self):
        raise AssertionError("it looks at the instance types")

    __bool__ = __len__ = __iter__


def test_a_rule_that_looks_at_targets_is_asked_per_type():
    # The others decide once for all types: they must not look.
    seen = set()
    cases = [case for pair in CASES.values() for case in pair] + [case for _, case in MORE]
    for case in cases:
        given = {name: value for name, value in case.items() if name != "instance_type"}
        given = {name: value for name, value in given.items() if value != "latest"}
        combination = replace(Combination(**given, today=TODAY), instance_types=Untouchable())
        for rule in CHECKS.keys() - BY_INSTANCE_TYPE:
            seen |= {rule for _ in CHECKS[rule](combination)}
    assert len(seen) > 25


def test_every_rule_has_a_check_and_a_case():
    assert set(rules()) == {*CHECKS, *INSTANCE_CHECKS}
    assert set(rules()) == set(CASES)
