# packer/ubuntu2404-lts-base-x86_64: Ubuntu 24.04, stack lts, flavor base, x86_64
# Written by `./invoke render` from amis.yaml: edit there.
#
# This file holds what is baked into this AMI, files/etc/kiln/recipe.json the rest of its recipe.
# How it is baked is the same for every AMI: ../shared/, which this folder links to.
#
# By hand, without AMI Kiln, from any directory (here: from packer/ in the checkout), with Packer 1.9 or newer:
#   packer init ubuntu2404-lts-base-x86_64
#   packer build -var source_ami=ami-... -var 'ssh_source_cidrs=["<your address>/32"]' ubuntu2404-lts-base-x86_64
# The parent AMI: aws ssm get-parameter --query Parameter.Value --output text \
#   --name /aws/service/canonical/ubuntu/server/24.04/stable/current/amd64/hvm/ebs-gp3/ami-id

locals {
  components = {
    "kernel" = {
      env = {
        KERNEL_PACKAGE          = ""
        KERNEL_DEFAULT_PACKAGE  = "linux-aws"
        KERNEL_COMPILER_PACKAGE = ""
        KERNEL_OS_PACKAGES      = "python3 gnupg ca-certificates curl xz-utils bzip2 pciutils kmod gcc make patch dkms libc6-dev"
      }
    }
    "nvidia-repo" = {
      env = {
        CUDA_REPO               = "ubuntu2404"
        CUDA_REPO_URL           = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64"
        CUDA_LIBRARIES_REPO_URL = ""
      }
      downloads = {
        CUDA_REPO_KEY = "https://developer.download.nvidia.com/compute/cuda/repos/ubuntu2404/x86_64/3bf863cc.pub"
      }
      keys = {
        CUDA_RPM_KEY_FINGERPRINT = "nvidia-cuda-rpm"
        CUDA_DEB_KEY_FINGERPRINT = "nvidia-cuda-deb"
      }
    }
    "nvidia-driver" = {
      env = {
        NVIDIA_DRIVER_VERSION  = "580.178.04"
        NVIDIA_DRIVER_SOURCE   = "repo"
        NVIDIA_KERNEL_MODULE   = "open"
        NVIDIA_DRIVER_STREAM   = "580-open"
        NVIDIA_DRIVER_PACKAGES = "nvidia-open-580=580.178.04"
        NVIDIA_OTHER_STREAM    = ""
        NVIDIA_OTHER_PACKAGES  = ""
      }
    }
    "nvidia-fabricmanager" = {
      env = {
        NVIDIA_DRIVER_VERSION         = "580.178.04"
        NVIDIA_FABRICMANAGER_PACKAGES = "nvidia-fabricmanager=580.178.04"
        NVLSM_PACKAGES                = "nvlsm=2025.10.14"
        NVLSM_OS_PACKAGES             = "libibumad3 infiniband-diags"
        NVLSM_PROGRAM                 = "/opt/nvidia/nvlsm/sbin/nvlsm"
      }
    }
    "cuda" = {
      env = {
        CUDA_VERSION  = "13.0.3"
        CUDA_SERIES   = "13.0"
        CUDA_PACKAGES = "cuda-toolkit-13-0=13.0.3"
      }
    }
    "cudnn" = {
      env = {
        CUDNN_VERSION  = "9.20.0.48"
        CUDNN_PACKAGES = "libcudnn9-cuda-13=9.20.0.48 libcudnn9-dev-cuda-13=9.20.0.48 libcudnn9-headers-cuda-13=9.20.0.48"
      }
    }
    "nccl" = {
      env = {
        NCCL_VERSION  = "2.28.3"
        NCCL_PACKAGES = "libnccl2=2.28.3@cuda13.0 libnccl-dev=2.28.3@cuda13.0"
      }
    }
    "efa" = {
      env = {
        EFA_INSTALLER_VERSION = "1.51.0"
        EFA_SKIP_PLUGIN       = ""
      }
      downloads = {
        EFA_INSTALLER = "https://efa-installer.amazonaws.com/aws-efa-installer-1.51.0.tar.gz"
        EFA_SIGNATURE = "https://efa-installer.amazonaws.com/aws-efa-installer-1.51.0.tar.gz.sig"
        EFA_KEY       = "https://efa-installer.amazonaws.com/aws-efa-installer.key"
      }
      keys = {
        EFA_KEY_FINGERPRINT = "efa"
      }
    }
    "nccl-tests" = {
      env = {
        NCCL_TESTS_OS_PACKAGES = "make g++"
        NCCL_TESTS_VERSION     = "2.17.6"
      }
      downloads = {
        NCCL_TESTS = "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.17.6.tar.gz"
      }
    }
    "dcgm" = {
      env = {
        DCGM_VERSION  = "4.6.0"
        DCGM_PACKAGES = "datacenter-gpu-manager-4-core=4.6.0 datacenter-gpu-manager-4-cuda13=4.6.0 datacenter-gpu-manager-4-proprietary=4.6.0 datacenter-gpu-manager-4-proprietary-cuda13=4.6.0"
      }
    }
    "container-toolkit" = {
      env = {
        CONTAINER_RUNTIME_REGISTRY = "nvidia-ctk"
        CONTAINER_TOOLKIT_VERSION  = "1.20.0"
        CONTAINER_TOOLKIT_PACKAGES = "libnvidia-container1=1.20.0 libnvidia-container-tools=1.20.0 nvidia-container-toolkit-base=1.20.0 nvidia-container-toolkit=1.20.0"
        CONTAINER_TOOLKIT_REPO_URL = "https://nvidia.github.io/libnvidia-container/stable/deb"
      }
      downloads = {
        CONTAINER_TOOLKIT_KEY = "https://nvidia.github.io/libnvidia-container/gpgkey"
      }
      keys = {
        CONTAINER_TOOLKIT_KEY_FINGERPRINT = "nvidia-container-toolkit"
      }
    }
    "aws-hw-monitor" = {}
    "gpu-mig" = {
      env = {
        MIG_CONFIG = ""
      }
    }
    "boost-clocks" = {}
    "tuning"       = {}
    "ssm-agent" = {
      env = {
        SSM_AGENT_OS_PACKAGES = ""
      }
    }
    "cloudwatch-agent" = {
      env = {
        CLOUDWATCH_AGENT_VERSION = "1.300072.0"
      }
      downloads = {
        CLOUDWATCH_AGENT           = "https://amazoncloudwatch-agent.s3.amazonaws.com/ubuntu/amd64/1.300072.0b1766/amazon-cloudwatch-agent.deb"
        CLOUDWATCH_AGENT_SIGNATURE = "https://amazoncloudwatch-agent.s3.amazonaws.com/ubuntu/amd64/1.300072.0b1766/amazon-cloudwatch-agent.deb.sig"
        CLOUDWATCH_AGENT_KEY       = "https://amazoncloudwatch-agent.s3.amazonaws.com/assets/amazon-cloudwatch-agent.gpg"
      }
      keys = {
        CLOUDWATCH_AGENT_KEY_FINGERPRINT = "cloudwatch-agent"
      }
    }
    "version-info" = {}
    "cleanup"      = {}
    "hygiene"      = {}
  }
}
