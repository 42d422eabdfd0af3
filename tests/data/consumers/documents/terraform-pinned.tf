# Terraform: al2023/lts/base/x86_64, channel stable (ami-0123456789abcdef0), on g4dn.xlarge
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
  default     = ""
  description = "Name of an instance profile, such as that of stack.deploy; empty for none."
}

variable "placement_group" {
  type        = string
  default     = ""
  description = "Name of a placement group; empty for none."
}

variable "capacity_reservation" {
  type        = string
  default     = ""
  description = "Id of a capacity reservation or capacity block; empty for none."
}

variable "capacity_block" {
  type        = bool
  default     = false
  description = "Whether the reservation is a capacity block."
}

resource "aws_launch_template" "gpu" {
  name          = "gpu-al2023-lts-base"
  image_id      = "ami-0123456789abcdef0"
  instance_type = "g4dn.xlarge"

  vpc_security_group_ids = var.security_group_ids

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

  tag_specifications {
    resource_type = "instance"
    tags = {
      "Name"         = "gpu-al2023-lts-base"
      "kiln:channel" = "stable"
      "kiln:line"    = "al2023/lts/base/x86_64"
    }
  }
}

resource "aws_autoscaling_group" "gpu" {
  name                = "gpu-al2023-lts-base"
  min_size            = 0
  desired_capacity    = var.instance_count
  max_size            = var.instance_count
  vpc_zone_identifier = var.subnet_ids

  launch_template {
    id      = aws_launch_template.gpu.id
    version = aws_launch_template.gpu.latest_version
  }
}
