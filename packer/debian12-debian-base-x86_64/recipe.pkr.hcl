# packer/debian12-debian-base-x86_64: Debian 12, stack debian, flavor base, x86_64
# Written by `./invoke render` from amis.yaml: edit there.
#
# This file holds what is baked into this AMI, files/etc/kiln/recipe.json the rest of its recipe.
# How it is baked is the same for every AMI: ../shared/, which this folder links to.
#
# By hand, without AMI Kiln, from any directory (here: from packer/ in the checkout), with Packer 1.9 or newer:
#   packer init debian12-debian-base-x86_64
#   packer build -var source_ami=ami-... -var 'ssh_source_cidrs=["<your address>/32"]' debian12-debian-base-x86_64
# The parent AMI: aws ssm get-parameter --query Parameter.Value --output text \
#   --name /aws/service/debian/release/12/latest/amd64

locals {
  components = {
    "kernel" = {
      env = {
        KERNEL_PACKAGE          = ""
        KERNEL_DEFAULT_PACKAGE  = "linux-image-cloud-amd64"
        KERNEL_COMPILER_PACKAGE = ""
        KERNEL_OS_PACKAGES      = "python3 gnupg ca-certificates curl xz-utils bzip2 pciutils kmod gcc make patch dkms libc6-dev"
      }
    }
    "nvidia-driver" = {
      env = {
        NVIDIA_DRIVER_VERSION  = "535.309.01"
        NVIDIA_DRIVER_SOURCE   = "distro"
        NVIDIA_KERNEL_MODULE   = "proprietary"
        NVIDIA_DRIVER_STREAM   = "535-dkms"
        NVIDIA_DRIVER_PACKAGES = "nvidia-kernel-dkms=535.309.01 nvidia-driver-bin=535.309.01 nvidia-smi=535.309.01 libcuda1=535.309.01 nvidia-persistenced"
        NVIDIA_OTHER_STREAM    = ""
        NVIDIA_OTHER_PACKAGES  = ""
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
        SSM_AGENT_VERSION     = "3.3.5226.0"
      }
      downloads = {
        SSM_AGENT = "https://s3.amazonaws.com/ec2-downloads-windows/SSMAgent/3.3.5226.0/debian_amd64/amazon-ssm-agent.deb"
      }
    }
    "version-info" = {}
    "cleanup"      = {}
    "hygiene"      = {}
  }
}
