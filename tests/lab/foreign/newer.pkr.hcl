# Two builders of today's amazon plugin that Debian's Packer does not have, or has otherwise.
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
  ssh_interface                         = "private_dns"
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

source "amazon-ebssurrogate" "disk" {
  region                                = "us-east-1"
  source_ami                            = var.source_ami
  instance_type                         = "m5.large"
  ssh_username                          = "admin"
  ami_description                       = "made on a second disk"
  ami_virtualization_type               = "hvm"
  ami_architecture                      = "x86_64"
  ena_support                           = true
  temporary_security_group_source_cidrs = ["127.0.0.1/32"]
  launch_block_device_mappings {
    device_name           = "/dev/xvdf"
    volume_size           = 3
    volume_type           = "gp3"
    delete_on_termination = true
  }
  ami_root_device {
    source_device_name    = "/dev/xvdf"
    device_name           = "/dev/xvda"
    volume_size           = 3
    volume_type           = "gp3"
    delete_on_termination = true
  }
}

build {
  sources = ["amazon-ebs.spot"]
  provisioner "shell" {
    inline = ["echo spot | sudo tee /opt/made-by"]
  }
}

# An AMI of the disk's snapshot by RegisterImage, and by CreateImage of the instance that has it as
# its root volume then.
build {
  source "amazon-ebssurrogate.disk" {
    name     = "registered"
    ami_name = "${var.name}-disk"
  }
  source "amazon-ebssurrogate.disk" {
    name             = "created"
    ami_name         = "${var.name}-made"
    use_create_image = true
  }
  provisioner "shell" {
    inline_shebang = "/bin/bash -e"
    inline = [
      "sudo mkfs.ext4 -q -L root /dev/nvme1n1",
      "sudo mount /dev/nvme1n1 /mnt",
      "sudo cp -ax /. /mnt/",
      "echo disk | sudo tee /mnt/opt/made-by",
      "sudo rm -rf /mnt/var/lib/cloud/instances /mnt/etc/ssh/ssh_host_*",
      "sudo umount /mnt",
    ]
  }
}
