# The build instance and the AMI, for Packer 1.9.0 and newer.
# Written by `./invoke render` from templates/packer/: edit there.

packer {
  required_version = ">= 1.9.0"
}

locals {
  checkout = "${path.root}/../.."
  files    = "${path.root}/files"
  # file() itself starts from path.root.
  recipe = jsondecode(file("files/etc/kiln/recipe.json"))
}

source "amazon-ebs" "gpu" {
  region                     = var.region
  custom_endpoint_ec2        = var.custom_endpoint_ec2
  skip_metadata_api_check    = var.skip_metadata_api_check
  skip_region_validation     = var.skip_region_validation
  skip_credential_validation = var.skip_credential_validation
  max_retries                = var.max_retries

  source_ami           = var.source_ami
  instance_type        = var.instance_type != "" ? var.instance_type : local.recipe.instance_type
  iam_instance_profile = var.iam_instance_profile
  shutdown_behavior    = "terminate"
  spot_price           = var.spot_price
  spot_tags            = var.spot_price != "" ? merge(var.tags, local.tags) : null

  capacity_reservation_id = var.capacity_reservation_id
  fleet_tags              = var.spot_price != "" ? merge(var.tags, local.tags) : null

  vpc_id                                = var.vpc_id
  subnet_id                             = var.subnet_id
  security_group_ids                    = var.security_group_ids
  temporary_security_group_source_cidrs = var.ssh_source_cidrs

  # Only for a subnet that gives none by itself.
  associate_public_ip_address = var.ssh_interface == "public_ip" ? true : null

  ssh_username            = local.recipe.distro.ssh_user
  ssh_interface           = var.ssh_interface
  ssh_timeout             = var.ssh_timeout
  ssh_keypair_name        = var.ssh_keypair_name
  ssh_private_key_file    = var.ssh_private_key_file
  temporary_key_pair_name = "kiln-${local.run_id}"
  temporary_key_pair_type = "ed25519"

  metadata_options {
    http_endpoint               = "enabled"
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  launch_block_device_mappings {
    device_name           = local.recipe.distro.root_device
    volume_size           = var.volume_size != 0 ? var.volume_size : local.recipe.volume.size
    volume_type           = var.volume_type != "" ? var.volume_type : local.recipe.volume.type
    iops                  = var.volume_iops != 0 ? var.volume_iops : local.recipe.volume.iops
    throughput            = var.volume_throughput != 0 ? var.volume_throughput : local.recipe.volume.throughput
    encrypted             = true
    kms_key_id            = var.kms_key_id
    delete_on_termination = true
  }

  ami_name              = local.ami_name
  ami_description       = local.ami_description
  ami_regions           = var.ami_regions
  force_deregister      = false
  force_delete_snapshot = false
  imds_support          = "v2.0"

  tags            = merge(var.tags, local.tags, { Name = local.ami_name })
  snapshot_tags   = merge(var.tags, local.tags, { Name = local.ami_name })
  run_tags        = merge(var.tags, local.tags, { Name = "kiln-${local.run_id}" })
  run_volume_tags = merge(var.tags, local.tags, { Name = "kiln-${local.run_id}" })

  aws_polling {
    delay_seconds = var.poll_seconds
    max_attempts  = 240
  }
}
