# Packer's Ansible provisioner: its own SSH proxy is between the playbook and the instance.
variable "source_ami" { type = string }
variable "endpoint" { type = string }
variable "name" { type = string }
variable "ansible" { type = string }

source "amazon-ebs" "walked" {
  region                                = "us-east-1"
  custom_endpoint_ec2                   = var.endpoint
  skip_metadata_api_check               = true
  skip_region_validation                = true
  skip_credential_validation            = true
  source_ami                            = var.source_ami
  instance_type                         = "t3.micro"
  ssh_username                          = "ubuntu"
  ami_name                              = var.name
  temporary_security_group_source_cidrs = ["127.0.0.1/32"]
}

build {
  sources = ["source.amazon-ebs.walked"]
  provisioner "ansible" {
    command       = var.ansible
    playbook_file = "${path.root}/walk.yml"
    user          = "ubuntu"
    # The proxy's connection does not outlive a reboot, on EC2 neither. Its key is ssh-rsa, which
    # today's OpenSSH does not take by itself.
    extra_arguments = ["--skip-tags", "reboot"]
    ansible_env_vars = [
      "ANSIBLE_HOST_KEY_CHECKING=False",
      "ANSIBLE_SSH_TRANSFER_METHOD=piped",
      "ANSIBLE_SSH_ARGS=-o HostKeyAlgorithms=+ssh-rsa -o PubkeyAcceptedAlgorithms=+ssh-rsa",
    ]
  }
  provisioner "shell" {
    inline = ["test \"$(hostname)\" = walked", "grep -x '127.0.0.1 walked' /etc/hosts"]
  }
}
