# Spot instances as today's amazon plugin asks for them.
packer {
  required_plugins {
    amazon = { source = "github.com/hashicorp/amazon", version = ">= 1.8" }
  }
}
variable "source_ami" { type = string }
variable "name" { type = string }

source "amazon-ebs" "spot" {
  region                                = "us-east-1"
  source_ami                            = var.source_ami
  spot_instance_types                   = ["m5.large", "t3.large"]
  spot_price                            = "auto"
  spot_tags                             = { kind = "spot" }
  fleet_tags                            = { kind = "fleet" }
  ssh_username                          = "admin"
  ami_name                              = "${var.name}-spot"
  ami_description                       = "built on a spot instance"
  snapshot_users                        = ["111122223333"]
  imds_support                          = "v2.0"
  temporary_security_group_source_cidrs = ["127.0.0.1/32"]
  ami_block_device_mappings {
    device_name           = "/dev/xvdg"
    volume_size           = 5
    volume_type           = "gp3"
    delete_on_termination = true
  }
  run_tags      = { team = "ml" }
  snapshot_tags = { team = "ml" }
}

build {
  sources = ["amazon-ebs.spot"]
  provisioner "shell" {
    inline = ["echo spot | sudo tee /opt/made-by"]
  }
}
