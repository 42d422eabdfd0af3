# al2023-580.178.04-open-cuda13.0-base-x86_64: Amazon Linux 2023, NVIDIA driver 580.178.04, CUDA 13.0.2, flavour base, x86_64
# Written by `./invoke render` from amis.yaml: edit there.
#
# For Packer 1.6, whose amazon-ebs builder cannot require IMDSv2 of the build instance. Packer 1.7
# and newer can: they take the folder above. Without AMI Kiln, from that folder:
#   packer build -var source_ami=ami-... -var 'ssh_source_cidrs=["<your address>/32"]' packer-1.6/build.pkr.hcl
# The parent AMI: aws ssm get-parameter --query Parameter.Value --output text \
#   --name /aws/service/ami-amazon-linux-latest/al2023-ami-kernel-6.1-x86_64

variable "source_ami" {
  type        = string
  description = "Parent AMI, ami-..."
  validation {
    condition     = substr(var.source_ami, 0, 4) == "ami-"
    error_message = "The variable source_ami must be an AMI id (ami-...)."
  }
}

variable "ssh_source_cidrs" {
  type        = list(string)
  description = "Who may reach SSH on the build instance. With session_manager: [\"127.0.0.1/32\"]."
  validation {
    condition     = length(var.ssh_source_cidrs) > 0
    error_message = "The variable ssh_source_cidrs is empty, which Packer would take for the whole internet: give your own address, such as [\"203.0.113.7/32\"]."
  }
  validation {
    condition     = contains(var.ssh_source_cidrs, "0.0.0.0/0") == false && contains(var.ssh_source_cidrs, "::/0") == false
    error_message = "The variable ssh_source_cidrs must not open SSH to the whole internet."
  }
}

variable "region" {
  type    = string
  default = "us-east-1"
}

variable "vpc_id" {
  type        = string
  description = "Empty: the default VPC."
  default     = ""
}

variable "subnet_id" {
  type        = string
  description = "Empty: a default subnet."
  default     = ""
}

variable "security_group_ids" {
  type        = list(string)
  description = "Empty: a temporary group that lets ssh_source_cidrs in."
  default     = []
}

variable "ssh_interface" {
  type        = string
  description = "public_ip, private_ip, public_dns, private_dns or session_manager. Empty: the public address, or the private one where there is none."
  default     = ""
}

variable "ssh_keypair_name" {
  type        = string
  description = "EC2 key pair to use, with ssh_private_key_file. Empty: a temporary one, which Packer 1.6 makes as RSA and signs with SHA-1: Amazon Linux 2023 and Ubuntu 22.04 refuse it."
  default     = ""
}

variable "ssh_private_key_file" {
  type    = string
  default = ""
}

variable "iam_instance_profile" {
  type        = string
  description = "Of the build instance; session_manager needs one with AmazonSSMManagedInstanceCore."
  default     = ""
}

variable "instance_type" {
  type        = string
  description = "The type that bakes."
  default     = "g4dn.xlarge"
}

variable "volume_size" {
  type        = number
  description = "GiB."
  default     = 100
}

variable "volume_type" {
  type    = string
  default = "gp3"
}

variable "volume_iops" {
  type    = number
  default = 3000
}

variable "volume_throughput" {
  type        = number
  description = "MiB/s."
  default     = 125
}

variable "kms_key_id" {
  type        = string
  description = "Encrypts the volume and the AMI. Empty: the account's default EBS key."
  default     = ""
}

variable "ami_name" {
  type        = string
  description = "Empty: the recipe's name and the time."
  default     = ""
}

variable "ami_regions" {
  type        = list(string)
  description = "Regions that Packer copies the AMI to; the pipeline copies after its checks instead."
  default     = []
}

variable "run_id" {
  type        = string
  description = "Tags everything this run makes, so that it can be found and removed. Empty: by-hand and the time."
  default     = ""
}

variable "git_commit" {
  type    = string
  default = "unknown"
}

variable "recipe_digest" {
  type        = string
  description = "SHA-256 over the recipe and every file that is baked in; the pipeline passes it."
  default     = "unknown"
}

variable "target" {
  type        = string
  description = "aws or lab."
  default     = "aws"
}

variable "manifest" {
  type        = string
  description = "File that Packer writes the AMI ids to."
  default     = "manifest.json"
}

variable "max_retries" {
  type        = number
  description = "Of a call that AWS throttles or has no capacity for. Packer's own 10 take most of a minute to say so."
  default     = 5
}

variable "poll_seconds" {
  type        = number
  description = "Between two questions whether EC2 is done."
  default     = 15
}

variable "reboot_pause" {
  type        = string
  description = "Before the first connection after a reboot."
  default     = "10s"
}

variable "sha256" {
  type        = map(string)
  description = "Hash of each download by URL, from amis.lock.yaml. Missing: not checked, but recorded."
  default = {
    "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.17.6.tar.gz" = "38974e70342150ede0e3fb8fd24bfe60ccbde90fa20241716ba8bb338e6b61a0"
  }
}

variable "signing_keys" {
  type        = map(string)
  description = "Fingerprint of each vendor's signing key, from kiln/facts/knowledge/keys.yaml."
  default = {
    "cloudwatch-agent"         = "937616F3450B7D806CBD9725D58167303B789C72"
    "efa"                      = "4E9091BCBB97A96B26B15E59A05480B1DD2D3CCC"
    "fsx-lustre"               = "9C36DD9C515F10DBC3AA835C5D5CCC3383A962E1"
    "nvidia-container-toolkit" = "C95B321B61E88C1809C4F759DDCAE044F796ECB0"
    "nvidia-cuda-deb"          = "EB693B3035CD5710E231E123A4B469963BF863CC"
    "nvidia-cuda-rpm"          = "610C7B14E068A878070DA4E99CD0A493D42D0685"
  }
}

# The lab only: another EC2 endpoint, without the look-ups that need the real one.
variable "custom_endpoint_ec2" {
  type    = string
  default = ""
}

variable "skip_metadata_api_check" {
  type    = bool
  default = false
}

variable "skip_region_validation" {
  type    = bool
  default = false
}

variable "skip_credential_validation" {
  type    = bool
  default = false
}

locals {
  run_id   = var.run_id != "" ? var.run_id : "by-hand-${formatdate("YYYYMMDD-hhmmss", timestamp())}"
  ami_name = var.ami_name != "" ? var.ami_name : "al2023-580.178.04-open-cuda13.0-base-x86_64-${formatdate("YYYYMMDD-hhmmss", timestamp())}"

  tags = {
    "kiln:recipe"        = "al2023-580.178.04-open-cuda13.0-base-x86_64"
    "kiln:distro"        = "al2023"
    "kiln:flavor"        = "base"
    "kiln:arch"          = "x86_64"
    "kiln:driver"        = "580.178.04"
    "kiln:kernel-module" = "open"
    "kiln:cuda"          = "13.0.2"
    "kiln:nccl"          = "2.28.9"
    "kiln:efa"           = "1.51.0"
    "kiln:source-ami"    = var.source_ami
    "kiln:git-commit"    = var.git_commit
    "kiln:recipe-digest" = var.recipe_digest
    "kiln:run-id"        = local.run_id
    "kiln:target"        = var.target
  }

  # Every provisioner script gets these.
  environment = [
    "KILN_DIR=/var/tmp/kiln",
    "KILN_DISTRO=al2023",
    "KILN_FAMILY=al",
    "KILN_PACKAGE_MANAGER=dnf",
    "KILN_ARCH=x86_64",
    "KILN_FLAVOR=base",
    "KILN_SOURCE_AMI=${var.source_ami}",
    "KILN_GIT_COMMIT=${var.git_commit}",
    "KILN_RECIPE_DIGEST=${var.recipe_digest}",
    "KILN_RUN_ID=${local.run_id}",
  ]

  run_as_root = "sudo -n env {{ .Vars }} bash {{ .Path }}"
}

source "amazon-ebs" "gpu" {
  region                     = var.region
  custom_endpoint_ec2        = var.custom_endpoint_ec2
  skip_metadata_api_check    = var.skip_metadata_api_check
  skip_region_validation     = var.skip_region_validation
  skip_credential_validation = var.skip_credential_validation
  max_retries                = var.max_retries

  source_ami           = var.source_ami
  instance_type        = var.instance_type
  iam_instance_profile = var.iam_instance_profile
  shutdown_behavior    = "terminate"

  vpc_id                                = var.vpc_id
  subnet_id                             = var.subnet_id
  security_group_ids                    = var.security_group_ids
  temporary_security_group_source_cidrs = var.ssh_source_cidrs

  ssh_username            = "ec2-user"
  ssh_interface           = var.ssh_interface
  ssh_timeout             = "10m"
  ssh_keypair_name        = var.ssh_keypair_name
  ssh_private_key_file    = var.ssh_private_key_file
  temporary_key_pair_name = "kiln-${local.run_id}"

  launch_block_device_mappings {
    device_name           = "/dev/xvda"
    volume_size           = var.volume_size
    volume_type           = var.volume_type
    iops                  = var.volume_iops
    throughput            = var.volume_throughput
    encrypted             = true
    kms_key_id            = var.kms_key_id
    delete_on_termination = true
  }

  ami_name              = local.ami_name
  ami_description       = "Amazon Linux 2023, NVIDIA driver 580.178.04 (open), CUDA 13.0.2, NCCL 2.28.9, flavour base"
  ami_regions           = var.ami_regions
  force_deregister      = false
  force_delete_snapshot = false

  tags            = merge(local.tags, { Name = local.ami_name })
  snapshot_tags   = merge(local.tags, { Name = local.ami_name })
  run_tags        = merge(local.tags, { Name = "kiln-${local.run_id}" })
  run_volume_tags = merge(local.tags, { Name = "kiln-${local.run_id}" })

  aws_polling {
    delay_seconds = var.poll_seconds
    max_attempts  = 240
  }
}

build {
  name    = "al2023-580.178.04-open-cuda13.0-base-x86_64"
  sources = ["source.amazon-ebs.gpu"]

  provisioner "shell" {
    inline = ["install -d -m 0755 /var/tmp/kiln"]
  }

  provisioner "file" {
    sources     = ["../../provisioners/lib", "../../runtime", "../../runtime-variants", "files"]
    destination = "/var/tmp/kiln/"
  }

  # current packages, the kernel that will boot and its headers, the compiler that built it
  provisioner "shell" {
    script          = "../../provisioners/kernel.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "KERNEL_PACKAGE=",
      "KERNEL_DEFAULT_PACKAGE=kernel",
      "KERNEL_COMPILER_PACKAGE=",
    ])
    expect_disconnect = true
  }

  # NVIDIA's package repository, its key checked by fingerprint
  provisioner "shell" {
    script          = "../../provisioners/nvidia-repo.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "CUDA_REPO=amzn2023",
      "CUDA_REPO_URL=https://developer.download.nvidia.com/compute/cuda/repos/amzn2023/x86_64",
      "CUDA_REPO_KEY_URL=https://developer.download.nvidia.com/compute/cuda/repos/amzn2023/x86_64/D42D0685.pub",
      "CUDA_REPO_KEY_SHA256=${lookup(var.sha256, "https://developer.download.nvidia.com/compute/cuda/repos/amzn2023/x86_64/D42D0685.pub", "")}",
      "CUDA_RPM_KEY_FINGERPRINT=${lookup(var.signing_keys, "nvidia-cuda-rpm", "")}",
      "CUDA_DEB_KEY_FINGERPRINT=${lookup(var.signing_keys, "nvidia-cuda-deb", "")}",
    ])
    pause_before        = var.reboot_pause
    start_retry_timeout = "10m"
  }

  # NVIDIA driver, its kernel module built by DKMS for the kernel that boots, persistenced
  provisioner "shell" {
    script          = "../../provisioners/nvidia-driver.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "NVIDIA_DRIVER_VERSION=580.178.04",
      "NVIDIA_DRIVER_SOURCE=repo",
      "NVIDIA_KERNEL_MODULE=open",
      "NVIDIA_DRIVER_STREAM=580-open",
      "NVIDIA_DRIVER_PACKAGES=kmod-nvidia-open-dkms=580.178.04 nvidia-driver=580.178.04 nvidia-driver-cuda=580.178.04 nvidia-persistenced=580.178.04",
      "NVIDIA_OTHER_STREAM=",
      "NVIDIA_OTHER_PACKAGES=",
    ])
  }

  # fabric manager at exactly the driver's version, started only where NVSwitch is present
  provisioner "shell" {
    script          = "../../provisioners/nvidia-fabricmanager.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "NVIDIA_DRIVER_VERSION=580.178.04",
      "NVIDIA_FABRICMANAGER_PACKAGES=nvidia-fabricmanager=580.178.04",
      "NVLSM_PACKAGES=nvlsm=2025.10.14",
      "NVLSM_OS_PACKAGES=libibumad infiniband-diags",
    ])
  }

  # CUDA toolkit
  provisioner "shell" {
    script          = "../../provisioners/cuda.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "CUDA_VERSION=13.0.2",
      "CUDA_SERIES=13.0",
      "CUDA_PACKAGES=cuda-toolkit-13-0=13.0.2",
    ])
  }

  # cuDNN for that CUDA
  provisioner "shell" {
    script          = "../../provisioners/cudnn.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "CUDNN_VERSION=9.24.1.1",
      "CUDNN_PACKAGES=libcudnn9-cuda-13=9.24.1.1 libcudnn9-devel-cuda-13=9.24.1.1 libcudnn9-headers-cuda-13=9.24.1.1",
    ])
  }

  # NCCL packages for that CUDA
  provisioner "shell" {
    script          = "../../provisioners/nccl.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "NCCL_VERSION=2.28.9",
      "NCCL_PACKAGES=libnccl=2.28.9@cuda13.0 libnccl-devel=2.28.9@cuda13.0",
    ])
  }

  # EFA installer (driver, libfabric, Open MPI), its signature checked
  provisioner "shell" {
    script          = "../../provisioners/efa.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "EFA_INSTALLER_VERSION=1.51.0",
      "EFA_SKIP_PLUGIN=",
      "EFA_INSTALLER_URL=https://efa-installer.amazonaws.com/aws-efa-installer-1.51.0.tar.gz",
      "EFA_INSTALLER_SHA256=${lookup(var.sha256, "https://efa-installer.amazonaws.com/aws-efa-installer-1.51.0.tar.gz", "")}",
      "EFA_SIGNATURE_URL=https://efa-installer.amazonaws.com/aws-efa-installer-1.51.0.tar.gz.sig",
      "EFA_SIGNATURE_SHA256=${lookup(var.sha256, "https://efa-installer.amazonaws.com/aws-efa-installer-1.51.0.tar.gz.sig", "")}",
      "EFA_KEY_URL=https://efa-installer.amazonaws.com/aws-efa-installer.key",
      "EFA_KEY_SHA256=${lookup(var.sha256, "https://efa-installer.amazonaws.com/aws-efa-installer.key", "")}",
      "EFA_KEY_FINGERPRINT=${lookup(var.signing_keys, "efa", "")}",
    ])
  }

  # NVIDIA's nccl-tests in /opt/nccl-tests, built with the image's CUDA, NCCL and Open MPI
  provisioner "shell" {
    script          = "../../provisioners/nccl-tests.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "NCCL_TESTS_URL=https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.17.6.tar.gz",
      "NCCL_TESTS_SHA256=${lookup(var.sha256, "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.17.6.tar.gz", "")}",
      "NCCL_TESTS_VERSION=2.17.6",
    ])
  }

  # DCGM host engine
  provisioner "shell" {
    script          = "../../provisioners/dcgm.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "DCGM_VERSION=4.6.0",
      "DCGM_PACKAGES=datacenter-gpu-manager-4-core=4.6.0 datacenter-gpu-manager-4-cuda13=4.6.0",
    ])
  }

  # NVIDIA container toolkit, configured for the runtimes on the image
  provisioner "shell" {
    script          = "../../provisioners/container-toolkit.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "CONTAINER_TOOLKIT_VERSION=1.20.0",
      "CONTAINER_TOOLKIT_PACKAGES=libnvidia-container1=1.20.0 libnvidia-container-tools=1.20.0 nvidia-container-toolkit-base=1.20.0 nvidia-container-toolkit=1.20.0",
      "CONTAINER_TOOLKIT_REPO_URL=https://nvidia.github.io/libnvidia-container/stable/rpm",
      "CONTAINER_TOOLKIT_KEY_URL=https://nvidia.github.io/libnvidia-container/gpgkey",
      "CONTAINER_TOOLKIT_KEY_SHA256=${lookup(var.sha256, "https://nvidia.github.io/libnvidia-container/gpgkey", "")}",
      "CONTAINER_TOOLKIT_KEY_FINGERPRINT=${lookup(var.signing_keys, "nvidia-container-toolkit", "")}",
    ])
  }

  # the Xid event parser and its unit
  provisioner "shell" {
    script           = "../../provisioners/aws-hw-monitor.sh"
    execute_command  = local.run_as_root
    environment_vars = local.environment
  }

  # MIG configuration applied at every boot
  provisioner "shell" {
    script          = "../../provisioners/gpu-mig.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "MIG_CONFIG=",
    ])
  }

  # the GPUs' highest application clocks, set at every boot where the driver allows it
  provisioner "shell" {
    script           = "../../provisioners/boost-clocks.sh"
    execute_command  = local.run_as_root
    environment_vars = local.environment
  }

  # locked memory, open files and kernel settings for EFA and NCCL
  provisioner "shell" {
    script           = "../../provisioners/tuning.sh"
    execute_command  = local.run_as_root
    environment_vars = local.environment
  }

  # Lustre client, for FSx for Lustre
  provisioner "shell" {
    script          = "../../provisioners/lustre-client.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "LUSTRE_TOPIC=",
      "LUSTRE_SUITE=",
      "LUSTRE_REPO_URL=",
      "LUSTRE_KEY_FINGERPRINT=${lookup(var.signing_keys, "fsx-lustre", "")}",
    ])
  }

  # Systems Manager agent: Amazon Linux's package, Ubuntu's snap, Amazon's package on Debian
  provisioner "shell" {
    script           = "../../provisioners/ssm-agent.sh"
    execute_command  = local.run_as_root
    environment_vars = local.environment
  }

  # CloudWatch agent with GPU metrics and the Xid event log
  provisioner "shell" {
    script          = "../../provisioners/cloudwatch-agent.sh"
    execute_command = local.run_as_root
    environment_vars = concat(local.environment, [
      "CLOUDWATCH_AGENT_VERSION=1.300071.0",
      "CLOUDWATCH_AGENT_URL=https://amazoncloudwatch-agent.s3.amazonaws.com/amazon_linux/amd64/1.300071.0b1720/amazon-cloudwatch-agent.rpm",
      "CLOUDWATCH_AGENT_SHA256=${lookup(var.sha256, "https://amazoncloudwatch-agent.s3.amazonaws.com/amazon_linux/amd64/1.300071.0b1720/amazon-cloudwatch-agent.rpm", "")}",
      "CLOUDWATCH_AGENT_SIGNATURE_URL=https://amazoncloudwatch-agent.s3.amazonaws.com/amazon_linux/amd64/1.300071.0b1720/amazon-cloudwatch-agent.rpm.sig",
      "CLOUDWATCH_AGENT_SIGNATURE_SHA256=${lookup(var.sha256, "https://amazoncloudwatch-agent.s3.amazonaws.com/amazon_linux/amd64/1.300071.0b1720/amazon-cloudwatch-agent.rpm.sig", "")}",
      "CLOUDWATCH_AGENT_KEY_URL=https://amazoncloudwatch-agent.s3.amazonaws.com/assets/amazon-cloudwatch-agent.gpg",
      "CLOUDWATCH_AGENT_KEY_SHA256=${lookup(var.sha256, "https://amazoncloudwatch-agent.s3.amazonaws.com/assets/amazon-cloudwatch-agent.gpg", "")}",
      "CLOUDWATCH_AGENT_KEY_FINGERPRINT=${lookup(var.signing_keys, "cloudwatch-agent", "")}",
    ])
  }

  # /etc/kiln/version-info.json, the truth about what is on the image
  provisioner "shell" {
    script           = "../../provisioners/version-info.sh"
    execute_command  = local.run_as_root
    environment_vars = local.environment
  }

  # removal of keys, identities, histories, caches and cloud-init state
  provisioner "shell" {
    script           = "../../provisioners/cleanup.sh"
    execute_command  = local.run_as_root
    environment_vars = local.environment
  }

  # assertion that the clean-up left nothing behind, right before the snapshot
  provisioner "shell" {
    script           = "../../provisioners/hygiene.sh"
    execute_command  = local.run_as_root
    environment_vars = local.environment
  }

  post-processor "manifest" {
    output     = var.manifest
    strip_path = true
    custom_data = {
      recipe        = "al2023-580.178.04-open-cuda13.0-base-x86_64"
      recipe_digest = var.recipe_digest
      run_id        = local.run_id
      git_commit    = var.git_commit
      source_ami    = var.source_ami
      target        = var.target
    }
  }
}
