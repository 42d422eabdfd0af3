# A template that reboots between two provisioners and waits for nothing, as on EC2.
variable "source_ami" { type = string }
variable "endpoint" { type = string }
variable "name" { type = string }
variable "user" { type = string }
variable "ssh_interface" {
  type    = string
  default = "public_ip"
}

source "amazon-ebs" "reboot" {
  region                                = "us-east-1"
  custom_endpoint_ec2                   = var.endpoint
  skip_metadata_api_check               = true
  skip_region_validation                = true
  skip_credential_validation            = true
  source_ami                            = var.source_ami
  instance_type                         = "t3.micro"
  ssh_username                          = var.user
  ssh_interface                         = var.ssh_interface
  ami_name                              = var.name
  ami_description                       = "rebooted twice"
  ami_users                             = ["210987654321"]
  snapshot_users                        = ["210987654321"]
  ena_support                           = true
  temporary_security_group_source_cidrs = ["127.0.0.1/32"]
}

build {
  sources = ["source.amazon-ebs.reboot"]
  provisioner "shell" {
    inline            = ["cat /proc/sys/kernel/random/boot_id > before", "sudo shutdown -r now"]
    expect_disconnect = true
  }
  provisioner "shell" {
    inline = [
      "test \"$(cat before)\" != \"$(cat /proc/sys/kernel/random/boot_id)\"",
      "sudo systemctl reboot",
    ]
    expect_disconnect = true
  }
  provisioner "shell" {
    inline = ["test \"$(cat before)\" != \"$(cat /proc/sys/kernel/random/boot_id)\"", "echo third boot of $(hostname)"]
  }
}
