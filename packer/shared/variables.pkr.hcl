# Variables that a build accepts with -var or from a var file; the same for every AMI.
# Written by `./invoke render` from templates/packer/: edit there.

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

variable "ssh_timeout" {
  type        = string
  description = "How long the build instance may take until it answers over SSH: 20m."
  default     = "10m"
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
  description = "The type that bakes. Empty: the recipe's."
  default     = ""
}

variable "volume_size" {
  type        = number
  description = "GiB. 0: the recipe's."
  default     = 0
}

variable "volume_type" {
  type        = string
  description = "Empty: the recipe's."
  default     = ""
}

variable "volume_iops" {
  type        = number
  description = "0: the recipe's."
  default     = 0
}

variable "volume_throughput" {
  type        = number
  description = "MiB/s. 0: the recipe's."
  default     = 0
}

variable "kms_key_id" {
  type        = string
  description = "Encrypts the volume and the AMI. Empty: the account's default EBS key."
  default     = ""
}

variable "tags" {
  type        = map(string)
  description = "Yours, on everything that Packer makes; the pipeline tags what it makes with the same."
  default     = {}
}

variable "spot_price" {
  type        = string
  description = "auto: a Spot instance, at most at the on-demand price. Empty: on demand."
  default     = ""
}

variable "capacity_reservation_id" {
  type        = string
  description = "Of the type that bakes; Packer 1.6 has no attribute for it."
  default     = ""
}

variable "proxy" {
  type        = string
  description = "Of the provisioners: http://proxy.example.com:3128. It is not on the image."
  default     = ""
}

variable "no_proxy" {
  type        = list(string)
  description = "What the provisioners reach without the proxy."
  default     = []
}

variable "mirrors" {
  type        = map(string)
  description = "Beginning of a vendor's URL and what takes its place while the provisioners run."
  default     = {}
}

variable "time_limits" {
  type        = map(string)
  description = "How long a component's provisioner may take, 90m or 4h; all: each other one, otherwise 2h."
  default     = {}
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

variable "input_digest" {
  type        = string
  description = "SHA-256 over recipe_digest, the parent AMI's id and the package snapshot; the pipeline passes it."
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
    "https://amazoncloudwatch-agent.s3.amazonaws.com/ubuntu/amd64/1.300072.0b1766/amazon-cloudwatch-agent.deb"                                           = "05baeadca96c4bb8e43906ed09cf0bebd0f321ff6d41987bdc46ce681de0978d"
    "https://amazoncloudwatch-agent.s3.amazonaws.com/ubuntu/arm64/1.300072.0b1766/amazon-cloudwatch-agent.deb"                                           = "f84cbb6b193f80440f713ec3a2b2b6ed45a16f10d8f0fe38c01cbff9155cb3f9"
    "https://developer.download.nvidia.com/compute/nvidia-driver/redist/fabricmanager/linux-x86_64/fabricmanager-linux-x86_64-510.47.03-archive.tar.xz"  = "d5c7204160f7b2c688932f90648995bd3bf3a821d99161cefb7e7a9539e22a6f"
    "https://developer.download.nvidia.com/compute/nvidia-driver/redist/fabricmanager/linux-x86_64/fabricmanager-linux-x86_64-550.163.01-archive.tar.xz" = "6517bab21f7f9e8c366bae219d45c0be01c59cbcf9b307689deab3a074f92b44"
    "https://efa-installer.amazonaws.com/aws-efa-installer-1.34.0.tar.gz"                                                                                = "bd68839e741b0afd3ec2e37d50603803cfa7a279c120f0a736cc57c2ff2d7fdc"
    "https://efa-installer.amazonaws.com/aws-efa-installer-1.42.0.tar.gz"                                                                                = "4114fe612905ee05083ae5cb391a00a012510f3abfecc642d86c9a5ae4be9008"
    "https://efa-installer.amazonaws.com/aws-efa-installer-1.49.0.tar.gz"                                                                                = "cf2e9281a2328a243c76f911a490faed43ca0fecfe4733c25e34b2e92a32c309"
    "https://github.com/NVIDIA/gdrcopy/archive/refs/tags/v2.4.4.tar.gz"                                                                                  = "8802f7bc4a589a610118023bdcdd83c10a56dea399acf6eeaac32e8cc10739a8"
    "https://github.com/NVIDIA/gdrcopy/archive/refs/tags/v2.5.1.tar.gz"                                                                                  = "c6d5ebb7dabb89d798f27609511735595004da73af28d93ac041bb5290c4cbec"
    "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.13.6.tar.gz"                                                                              = "52b472a58a4918d3221a9b8c4bd9335382643d7e241983918b64692d685cc3d1"
    "https://github.com/NVIDIA/nccl-tests/archive/refs/tags/v2.17.6.tar.gz"                                                                              = "38974e70342150ede0e3fb8fd24bfe60ccbde90fa20241716ba8bb338e6b61a0"
    "https://s3.amazonaws.com/ec2-downloads-windows/SSMAgent/3.3.5226.0/debian_amd64/amazon-ssm-agent.deb"                                               = "777df4e0ac4bbc8d7d1b159db76cdb6614666bcc73141874414b8be68fb9cba3"
    "https://us.download.nvidia.com/tesla/470.256.02/NVIDIA-Linux-x86_64-470.256.02.run"                                                                 = "d6451862deb695bb0447f3b7cd6268f73e81168c10e2c10597ff3fa01349b1de"
    "https://us.download.nvidia.com/tesla/510.47.03/NVIDIA-Linux-x86_64-510.47.03.run"                                                                   = "f2a421dae836318d3c0d96459ccb3af27e90e50c95b0faa4288af76279e5d690"
    "https://us.download.nvidia.com/tesla/550.163.01/NVIDIA-Linux-x86_64-550.163.01.run"                                                                 = "ef8149f5b34595460145e9fbf82d3c92ee46735b856067aa94887b975cab9a2e"
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
