# Terraform: al2023/lts/eks/x86_64, channel stable, on p4d.24xlarge
# terraform apply -var='subnet_ids=["subnet-…"]' -var='security_group_ids=["sg-…"]'
# An apply takes the channel's image of that moment.
terraform {
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = ">= 5.74.0" # the first that knows efa-only
    }
  }
}

variable "security_group_ids" {
  type        = list(string)
  description = "With EFA they must allow all traffic within themselves."
}

variable "subnet_ids" {
  type = list(string)
}

variable "instance_count" {
  type    = number
  default = 1
}

variable "instance_profile" {
  type        = string
  default     = "gpu-telemetry"
  description = "Name of an instance profile, such as that of stack.deploy; empty for none."
}

variable "placement_group" {
  type        = string
  default     = "near by"
  description = "Name of a placement group; empty for none."
}

variable "capacity_reservation" {
  type        = string
  default     = "cr-0123456789abcdef0"
  description = "Id of a capacity reservation or capacity block; empty for none."
}

variable "capacity_block" {
  type        = bool
  default     = true
  description = "Whether the reservation is a capacity block."
}

data "aws_ssm_parameter" "image" {
  name = "/ami-kiln/al2023/lts/eks/x86_64/stable/image_id"
}

resource "aws_launch_template" "gpu" {
  name          = "gpu-al2023-lts-eks"
  image_id      = nonsensitive(data.aws_ssm_parameter.image.value)
  instance_type = "p4d.24xlarge"

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 2
    instance_metadata_tags      = "enabled"
  }

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size = 100
      volume_type = "gp3"
      encrypted   = true
    }
  }

  dynamic "iam_instance_profile" {
    for_each = var.instance_profile == "" ? [] : [var.instance_profile]
    content {
      name = iam_instance_profile.value
    }
  }

  dynamic "placement" {
    for_each = var.placement_group == "" ? [] : [var.placement_group]
    content {
      group_name = placement.value
    }
  }

  dynamic "capacity_reservation_specification" {
    for_each = var.capacity_reservation == "" ? [] : [var.capacity_reservation]
    content {
      capacity_reservation_target {
        capacity_reservation_id = capacity_reservation_specification.value
      }
    }
  }

  dynamic "instance_market_options" {
    for_each = var.capacity_block ? ["capacity-block"] : []
    content {
      market_type = instance_market_options.value
    }
  }

  network_interfaces {
    network_card_index    = 0
    device_index          = 0
    interface_type        = "interface"
    security_groups       = var.security_group_ids
    delete_on_termination = true
  }

  network_interfaces {
    network_card_index    = 0
    device_index          = 1
    interface_type        = "efa-only"
    security_groups       = var.security_group_ids
    delete_on_termination = true
  }

  network_interfaces {
    network_card_index    = 1
    device_index          = 0
    interface_type        = "efa-only"
    security_groups       = var.security_group_ids
    delete_on_termination = true
  }

  network_interfaces {
    network_card_index    = 2
    device_index          = 0
    interface_type        = "efa-only"
    security_groups       = var.security_group_ids
    delete_on_termination = true
  }

  network_interfaces {
    network_card_index    = 3
    device_index          = 0
    interface_type        = "efa-only"
    security_groups       = var.security_group_ids
    delete_on_termination = true
  }

  tag_specifications {
    resource_type = "instance"
    tags = {
      "Name"            = "gpu-al2023-lts-eks"
      "kiln:channel"    = "stable"
      "kiln:line"       = "al2023/lts/eks/x86_64"
      "kiln:mig-config" = "all-1g.5gb"
    }
  }
}

resource "aws_autoscaling_group" "gpu" {
  name                = "gpu-al2023-lts-eks"
  min_size            = 0
  desired_capacity    = var.instance_count
  max_size            = var.instance_count
  vpc_zone_identifier = var.subnet_ids

  launch_template {
    id      = aws_launch_template.gpu.id
    version = aws_launch_template.gpu.latest_version
  }
}
