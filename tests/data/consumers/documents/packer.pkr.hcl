# Packer: al2023/lts/eks/x86_64, channel stable, on p4d.24xlarge
# A template of your own on top of the channel's image: packer init . && packer build .
packer {
  required_plugins {
    amazon = {
      source  = "github.com/hashicorp/amazon"
      version = ">= 1.2.0"
    }
  }
}

variable "region" {
  type    = string
  default = "us-east-1"
}

data "amazon-parameterstore" "parent" {
  name   = "/ami-kiln/al2023/lts/eks/x86_64/stable/image_id"
  region = var.region
}

source "amazon-ebs" "child" {
  region        = var.region
  source_ami    = data.amazon-parameterstore.parent.value
  instance_type = "p4d.24xlarge"
  ssh_username  = "ec2-user"
  ami_name      = "gpu-al2023-lts-eks-child-{{timestamp}}"
  imds_support  = "v2.0"

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  tags = {
    "kiln:parent-line"    = "al2023/lts/eks/x86_64"
    "kiln:parent-channel" = "stable"
  }
}

build {
  sources = ["source.amazon-ebs.child"]

  provisioner "shell" {
    inline = ["cat /etc/kiln/version-info.json"]
  }
}
