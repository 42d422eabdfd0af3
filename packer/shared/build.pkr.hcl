# How an AMI is baked, the same for every one. Its recipe and its components are in its own folder.
# Written by `./invoke render` from templates/packer/: edit there.

locals {
  run_id   = var.run_id != "" ? var.run_id : "by-hand-${formatdate("YYYYMMDD-hhmmss", timestamp())}"
  ami_name = var.ami_name != "" ? var.ami_name : "${local.recipe.name}-${formatdate("YYYYMMDD-hhmmss", timestamp())}"

  ami_description = join(", ", compact([
    local.recipe.distro.name,
    "NVIDIA driver ${local.recipe.driver} (${local.recipe.kernel_module})",
    local.recipe.cuda == null ? "" : "CUDA ${local.recipe.cuda}",
    local.recipe.nccl == null ? "" : "NCCL ${local.recipe.nccl}",
    "flavor ${local.recipe.flavor}",
  ]))

  # On everything a run makes. none: the component is not on the image.
  tags = {
    "kiln:recipe"        = local.recipe.name
    "kiln:distro"        = local.recipe.distro.id
    "kiln:flavor"        = local.recipe.flavor
    "kiln:arch"          = local.recipe.arch
    "kiln:driver"        = local.recipe.driver
    "kiln:kernel-module" = local.recipe.kernel_module
    "kiln:cuda"          = coalesce(local.recipe.cuda, "none")
    "kiln:nccl"          = coalesce(local.recipe.nccl, "none")
    "kiln:efa"           = coalesce(local.recipe.efa, "none")
    "kiln:source-ami"    = var.source_ami
    "kiln:git-commit"    = var.git_commit
    "kiln:recipe-digest" = var.recipe_digest
    "kiln:input-digest"  = var.input_digest
    "kiln:run-id"        = local.run_id
    "kiln:target"        = var.target
  }

  run_as_root = "sudo -n env {{ .Vars }} bash {{ .Path }}"

  # Every provisioner script gets these ...
  environment = concat(
    [
      "KILN_DIR=/var/tmp/kiln",
      "KILN_DISTRO=${local.recipe.distro.id}",
      "KILN_FAMILY=${local.recipe.distro.family}",
      "KILN_PACKAGE_MANAGER=${local.recipe.distro.package_manager}",
    ],
    [for name in ["KILN_PROXY", "http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"] : "${name}=${var.proxy}" if var.proxy != ""],
    [for name in ["no_proxy", "NO_PROXY"] : "${name}=${join(",", concat(local.never_by_proxy, var.no_proxy))}" if var.proxy != ""],
    [for pairs in [join(" ", [for from, to in var.mirrors : "${from}=${to}"])] : "KILN_MIRRORS=${pairs}" if pairs != ""],
  )

  # The instance itself and its metadata.
  never_by_proxy = ["localhost", "127.0.0.1", "169.254.169.254", "fd00:ec2::254"]

  # A provisioner's script ends itself at this limit, and says where it was. One that does not even do
  # that, Packer leaves five minutes later.
  time_limit_of = {
    for name, component in local.components : name => lookup(var.time_limits, name, local.time_limit)
  }
  time_limit = lookup(var.time_limits, "all", "2h")

  # ... and its component's own: the limit, env as it is, each download as NAME_URL and NAME_SHA256 (empty: not
  # known yet), each signing key as its fingerprint.
  environment_of = {
    for name, component in local.components : name => concat(
      local.environment,
      ["KILN_COMPONENT=${name}", "KILN_TIME_LIMIT=${local.time_limit_of[name]}"],
      [for key, value in lookup(component, "env", {}) : "${key}=${value}"],
      flatten([for key, url in lookup(component, "downloads", {}) : [
        "${key}_URL=${url}",
        "${key}_SHA256=${lookup(var.sha256, url, "")}",
      ]]),
      [for key, vendor in lookup(component, "keys", {}) : "${key}=${lookup(var.signing_keys, vendor, "")}"],
    )
  }

  # A provisioner below runs only where the AMI has its component.
  runs_on = { for name, component in local.components : name => ["amazon-ebs.gpu"] }
  nowhere = ["amazon-ebs.none"]
}

build {
  name    = "kiln"
  sources = ["source.amazon-ebs.gpu"]

  provisioner "shell" {
    inline = ["install -d -m 0755 /var/tmp/kiln"]
  }

  provisioner "file" {
    sources = [
      "${local.checkout}/provisioners/lib",
      "${local.checkout}/runtime",
      local.files,
    ]
    destination = "/var/tmp/kiln/"
  }

  # the distribution's packages as of the row's package_snapshot
  provisioner "shell" {
    only             = lookup(local.runs_on, "package-snapshot", local.nowhere)
    script           = "${local.checkout}/provisioners/package-snapshot.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "package-snapshot", [])
    timeout          = "${lookup(local.time_limit_of, "package-snapshot", local.time_limit)}5m"
  }

  # current packages; the kernel that will boot, its headers and compiler
  provisioner "shell" {
    only             = lookup(local.runs_on, "kernel", local.nowhere)
    script           = "${local.checkout}/provisioners/kernel.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "kernel", [])
    timeout          = "${lookup(local.time_limit_of, "kernel", local.time_limit)}5m"

    expect_disconnect = true
  }

  # the machine may be rebooting: go on when it answers again
  provisioner "shell" {
    only                = lookup(local.runs_on, "kernel", local.nowhere)
    inline              = ["uname -r"]
    pause_before        = var.reboot_pause
    start_retry_timeout = "10m"
  }

  # NVIDIA's package repository, its key checked by fingerprint
  provisioner "shell" {
    only             = lookup(local.runs_on, "nvidia-repo", local.nowhere)
    script           = "${local.checkout}/provisioners/nvidia-repo.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "nvidia-repo", [])
    timeout          = "${lookup(local.time_limit_of, "nvidia-repo", local.time_limit)}5m"
  }

  # NVIDIA driver, its kernel module built by DKMS for the kernel that boots, persistenced
  provisioner "shell" {
    only             = lookup(local.runs_on, "nvidia-driver", local.nowhere)
    script           = "${local.checkout}/provisioners/nvidia-driver.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "nvidia-driver", [])
    timeout          = "${lookup(local.time_limit_of, "nvidia-driver", local.time_limit)}5m"
  }

  # fabric manager at exactly the driver's version, started only where NVSwitch is present
  provisioner "shell" {
    only             = lookup(local.runs_on, "nvidia-fabricmanager", local.nowhere)
    script           = "${local.checkout}/provisioners/nvidia-fabricmanager.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "nvidia-fabricmanager", [])
    timeout          = "${lookup(local.time_limit_of, "nvidia-fabricmanager", local.time_limit)}5m"
  }

  # IMEX for GB200 and GB300 hosts, at exactly the driver's version
  provisioner "shell" {
    only             = lookup(local.runs_on, "nvidia-imex", local.nowhere)
    script           = "${local.checkout}/provisioners/nvidia-imex.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "nvidia-imex", [])
    timeout          = "${lookup(local.time_limit_of, "nvidia-imex", local.time_limit)}5m"
  }

  # CUDA toolkit
  provisioner "shell" {
    only             = lookup(local.runs_on, "cuda", local.nowhere)
    script           = "${local.checkout}/provisioners/cuda.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "cuda", [])
    timeout          = "${lookup(local.time_limit_of, "cuda", local.time_limit)}5m"
  }

  # cuDNN for that CUDA
  provisioner "shell" {
    only             = lookup(local.runs_on, "cudnn", local.nowhere)
    script           = "${local.checkout}/provisioners/cudnn.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "cudnn", [])
    timeout          = "${lookup(local.time_limit_of, "cudnn", local.time_limit)}5m"
  }

  # NCCL packages for that CUDA
  provisioner "shell" {
    only             = lookup(local.runs_on, "nccl", local.nowhere)
    script           = "${local.checkout}/provisioners/nccl.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "nccl", [])
    timeout          = "${lookup(local.time_limit_of, "nccl", local.time_limit)}5m"
  }

  # EFA installer (driver, libfabric, Open MPI), its signature checked
  provisioner "shell" {
    only             = lookup(local.runs_on, "efa", local.nowhere)
    script           = "${local.checkout}/provisioners/efa.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "efa", [])
    timeout          = "${lookup(local.time_limit_of, "efa", local.time_limit)}5m"
  }

  # NCCL's EFA plugin from source, for installers that do not bundle it
  provisioner "shell" {
    only             = lookup(local.runs_on, "aws-ofi-nccl", local.nowhere)
    script           = "${local.checkout}/provisioners/aws-ofi-nccl.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "aws-ofi-nccl", [])
    timeout          = "${lookup(local.time_limit_of, "aws-ofi-nccl", local.time_limit)}5m"
  }

  # GDRCopy library and kernel module
  provisioner "shell" {
    only             = lookup(local.runs_on, "gdrcopy", local.nowhere)
    script           = "${local.checkout}/provisioners/gdrcopy.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "gdrcopy", [])
    timeout          = "${lookup(local.time_limit_of, "gdrcopy", local.time_limit)}5m"
  }

  # NVIDIA's nccl-tests in /opt/nccl-tests, built with the image's CUDA, NCCL and Open MPI
  provisioner "shell" {
    only             = lookup(local.runs_on, "nccl-tests", local.nowhere)
    script           = "${local.checkout}/provisioners/nccl-tests.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "nccl-tests", [])
    timeout          = "${lookup(local.time_limit_of, "nccl-tests", local.time_limit)}5m"
  }

  # DCGM host engine
  provisioner "shell" {
    only             = lookup(local.runs_on, "dcgm", local.nowhere)
    script           = "${local.checkout}/provisioners/dcgm.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "dcgm", [])
    timeout          = "${lookup(local.time_limit_of, "dcgm", local.time_limit)}5m"
  }

  # dcgm-exporter with our fields, on this machine's own address
  provisioner "shell" {
    only             = lookup(local.runs_on, "dcgm-exporter", local.nowhere)
    script           = "${local.checkout}/provisioners/dcgm-exporter.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "dcgm-exporter", [])
    timeout          = "${lookup(local.time_limit_of, "dcgm-exporter", local.time_limit)}5m"
  }

  # NVIDIA container toolkit, configured for the runtimes on the image
  provisioner "shell" {
    only             = lookup(local.runs_on, "container-toolkit", local.nowhere)
    script           = "${local.checkout}/provisioners/container-toolkit.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "container-toolkit", [])
    timeout          = "${lookup(local.time_limit_of, "container-toolkit", local.time_limit)}5m"
  }

  # the Xid event parser and its unit
  provisioner "shell" {
    only             = lookup(local.runs_on, "aws-hw-monitor", local.nowhere)
    script           = "${local.checkout}/provisioners/aws-hw-monitor.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "aws-hw-monitor", [])
    timeout          = "${lookup(local.time_limit_of, "aws-hw-monitor", local.time_limit)}5m"
  }

  # MIG configuration applied at every boot
  provisioner "shell" {
    only             = lookup(local.runs_on, "gpu-mig", local.nowhere)
    script           = "${local.checkout}/provisioners/gpu-mig.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "gpu-mig", [])
    timeout          = "${lookup(local.time_limit_of, "gpu-mig", local.time_limit)}5m"
  }

  # the GPUs' highest application clocks, set at every boot where the driver allows it
  provisioner "shell" {
    only             = lookup(local.runs_on, "boost-clocks", local.nowhere)
    script           = "${local.checkout}/provisioners/boost-clocks.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "boost-clocks", [])
    timeout          = "${lookup(local.time_limit_of, "boost-clocks", local.time_limit)}5m"
  }

  # locked memory, open files and kernel settings for EFA and NCCL
  provisioner "shell" {
    only             = lookup(local.runs_on, "tuning", local.nowhere)
    script           = "${local.checkout}/provisioners/tuning.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "tuning", [])
    timeout          = "${lookup(local.time_limit_of, "tuning", local.time_limit)}5m"
  }

  # Lustre client, for FSx for Lustre
  provisioner "shell" {
    only             = lookup(local.runs_on, "lustre-client", local.nowhere)
    script           = "${local.checkout}/provisioners/lustre-client.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "lustre-client", [])
    timeout          = "${lookup(local.time_limit_of, "lustre-client", local.time_limit)}5m"
  }

  # Systems Manager agent: Amazon Linux's package, Ubuntu's snap, Amazon's package on Debian
  provisioner "shell" {
    only             = lookup(local.runs_on, "ssm-agent", local.nowhere)
    script           = "${local.checkout}/provisioners/ssm-agent.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "ssm-agent", [])
    timeout          = "${lookup(local.time_limit_of, "ssm-agent", local.time_limit)}5m"
  }

  # CloudWatch agent with GPU metrics and the Xid event log
  provisioner "shell" {
    only             = lookup(local.runs_on, "cloudwatch-agent", local.nowhere)
    script           = "${local.checkout}/provisioners/cloudwatch-agent.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "cloudwatch-agent", [])
    timeout          = "${lookup(local.time_limit_of, "cloudwatch-agent", local.time_limit)}5m"
  }

  # /etc/kiln/version-info.json, the list of what is on the image
  provisioner "shell" {
    only             = lookup(local.runs_on, "version-info", local.nowhere)
    script           = "${local.checkout}/provisioners/version-info.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "version-info", [])
    timeout          = "${lookup(local.time_limit_of, "version-info", local.time_limit)}5m"
  }

  # removal of keys, identities, histories, caches and cloud-init state
  provisioner "shell" {
    only             = lookup(local.runs_on, "cleanup", local.nowhere)
    script           = "${local.checkout}/provisioners/cleanup.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "cleanup", [])
    timeout          = "${lookup(local.time_limit_of, "cleanup", local.time_limit)}5m"
  }

  # check that the clean-up left nothing behind
  provisioner "shell" {
    only             = lookup(local.runs_on, "hygiene", local.nowhere)
    script           = "${local.checkout}/provisioners/hygiene.sh"
    execute_command  = local.run_as_root
    environment_vars = lookup(local.environment_of, "hygiene", [])
    timeout          = "${lookup(local.time_limit_of, "hygiene", local.time_limit)}5m"
  }

  post-processor "manifest" {
    output     = var.manifest
    strip_path = true
    custom_data = {
      recipe        = local.recipe.name
      recipe_digest = var.recipe_digest
      input_digest  = var.input_digest
      run_id        = local.run_id
      git_commit    = var.git_commit
      source_ami    = var.source_ami
      target        = var.target
    }
  }
}
