# packer/al2-al2_last-base-x86_64: Amazon Linux 2, stack al2_last, flavor base, x86_64
# Written by `./invoke render` from amis.yaml: edit there.
#
# This file holds what is baked into this AMI, files/etc/kiln/recipe.json the rest of its recipe.
# How it is baked is the same for every AMI: ../shared/, which this folder links to.
#
# By hand, without AMI Kiln, from any directory (here: from packer/ in the checkout), with Packer 1.9 or newer:
#   packer init al2-al2_last-base-x86_64
#   packer build -var source_ami=ami-... -var 'ssh_source_cidrs=["<your address>/32"]' al2-al2_last-base-x86_64
# The parent AMI: aws ssm get-parameter --query Parameter.Value --output text \
#   --name /aws/service/ami-amazon-linux-latest/amzn2-ami-kernel-5.10-hvm-x86_64-gp2

locals {
  components = {
    "kernel" = {
      env = {
        KERNEL_PACKAGE          = ""
        KERNEL_DEFAULT_PACKAGE  = "kernel"
        KERNEL_COMPILER_PACKAGE = "gcc10"
        KERNEL_OS_PACKAGES      = "python3 xz bzip2 tar gzip pciutils kmod gcc make patch elfutils-libelf-devel dkms yum-plugin-versionlock"
      }
    }
    "nvidia-repo" = {
      env = {
        CUDA_REPO               = "rhel7"
        CUDA_REPO_URL           = "https://developer.download.nvidia.com/compute/cuda/repos/rhel7/x86_64"
        CUDA_LIBRARIES_REPO_URL = ""
      }
      downloads = {
        CUDA_REPO_KEY = "https://developer.download.nvidia.com/compute/cuda/repos/rhel7/x86_64/D42D0685.pub"
      }
      keys = {
        CUDA_RPM_KEY_FINGERPRINT = "nvidia-cuda-rpm"
        CUDA_DEB_KEY_FINGERPRINT = "nvidia-cuda-deb"
      }
    }
    "nvidia-driver" = {
      env = {
        NVIDIA_DRIVER_VERSION  = "550.163.01"
        NVIDIA_DRIVER_SOURCE   = "runfile"
        NVIDIA_KERNEL_MODULE   = "proprietary"
        NVIDIA_DRIVER_STREAM   = "550-dkms"
        NVIDIA_DRIVER_PACKAGES = ""
        NVIDIA_OTHER_STREAM    = ""
        NVIDIA_OTHER_PACKAGES  = ""
      }
      downloads = {
        NVIDIA_DRIVER = "https://us.download.nvidia.com/tesla/550.163.01/NVIDIA-Linux-x86_64-550.163.01.run"
      }
    }
    "nvidia-fabricmanager" = {
      env = {
        NVIDIA_DRIVER_VERSION         = "550.163.01"
        NVIDIA_FABRICMANAGER_PACKAGES = ""
        NVLSM_PACKAGES                = ""
        NVLSM_OS_PACKAGES             = ""
        NVLSM_PROGRAM                 = ""
      }
      downloads = {
        NVIDIA_FABRICMANAGER = "https://developer.download.nvidia.com/compute/nvidia-driver/redist/fabricmanager/linux-x86_64/fabricmanager-linux-x86_64-550.163.01-archive.tar.xz"
      }
    }
    "cuda" = {
      env = {
        CUDA_VERSION  = "12.4.0"
        CUDA_SERIES   = "12.4"
        CUDA_PACKAGES = "cuda-toolkit-12-4=12.4.0"
      }
    }
    "cudnn" = {
      env = {
        CUDNN_VERSION  = "8.9.6.50"
        CUDNN_PACKAGES = "libcudnn8=8.9.6.50@cuda12 libcudnn8-devel=8.9.6.50@cuda12"
      }
    }
    "nccl" = {
      env = {
        NCCL_VERSION  = "2.20.5"
        NCCL_PACKAGES = "libnccl=2.20.5@cuda12.4 libnccl-devel=2.20.5@cuda12.4"
      }
    }
    "efa" = {
      env = {
        EFA_INSTALLER_VERSION = "1.49.0"
        EFA_SKIP_PLUGIN       = ""
      }
      downloads = {
        EFA_INSTALLER = "https://efa-installer.amazonaws.com/aws-efa-installer-1.49.0.tar.gz"
        EFA_SIGNATURE = "https://efa-installer.amazonaws.com/aws-efa-installer-1.49.0.tar.gz.sig"
        EFA_KEY       = "https://efa-installer.amazonaws.com/aws-efa-installer.key"
      }
      keys = {
        EFA_KEY_FINGERPRINT = "efa"
      }
    }
    "gdrcopy" = {
      env = {
        GDRCOPY_VERSION = "2.4.4"
      }
      downloads = {
        GDRCOPY = "https://github.com/NVIDIA/gdrcopy/archive/refs/tags/v2.4.4.tar.gz"
      }
    }
    "nccl-tests" = {
      env = {
        NCCL_TESTS_OS_PACKAGES = "make gcc-c++ which"
        NCCL_TESTS_VERSION     = "2.13.6"
      }
      downloads = {
        NCCL_TESTS = "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.13.6.tar.gz"
      }
    }
    "container-toolkit" = {
      env = {
        CONTAINER_RUNTIME_REGISTRY = "nvidia-ctk"
        CONTAINER_TOOLKIT_VERSION  = "1.17.8"
        CONTAINER_TOOLKIT_PACKAGES = "libnvidia-container1=1.17.8 libnvidia-container-tools=1.17.8 nvidia-container-toolkit-base=1.17.8 nvidia-container-toolkit=1.17.8"
        CONTAINER_TOOLKIT_REPO_URL = "https://nvidia.github.io/libnvidia-container/stable/rpm"
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
    "lustre-client" = {
      env = {
        LUSTRE_TOPIC       = "lustre"
        LUSTRE_SUITE       = ""
        LUSTRE_REPO_URL    = ""
        LUSTRE_OS_PACKAGES = "lustre-client"
      }
      keys = {
        LUSTRE_KEY_FINGERPRINT = "fsx-lustre"
      }
    }
    "ssm-agent" = {
      env = {
        SSM_AGENT_OS_PACKAGES = "amazon-ssm-agent"
      }
    }
    "cloudwatch-agent" = {
      env = {
        CLOUDWATCH_AGENT_VERSION = "1.300072.0"
      }
      downloads = {
        CLOUDWATCH_AGENT           = "https://amazoncloudwatch-agent.s3.amazonaws.com/amazon_linux/amd64/1.300072.0b1766/amazon-cloudwatch-agent.rpm"
        CLOUDWATCH_AGENT_SIGNATURE = "https://amazoncloudwatch-agent.s3.amazonaws.com/amazon_linux/amd64/1.300072.0b1766/amazon-cloudwatch-agent.rpm.sig"
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
