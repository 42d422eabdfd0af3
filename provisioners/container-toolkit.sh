#!/usr/bin/env bash
# The NVIDIA container toolkit, and its runtime made known to the container runtimes of the image.
#
#@ env      CONTAINER_RUNTIME_REGISTRY         required  who makes it known: nvidia-ctk, docker-runtimes.d or nodeadm
#@ env      CONTAINER_TOOLKIT_VERSION          required  as nvidia-ctk prints it
#@ env      CONTAINER_TOOLKIT_PACKAGES         required  name=version …
#@ env      CONTAINER_TOOLKIT_REPO_URL         required  repository, without the architecture
#@ env      CONTAINER_TOOLKIT_KEY_FINGERPRINT  required  of the key that signs the repository
#@ download CONTAINER_TOOLKIT_KEY              required  key file, accepted by fingerprint only
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

key=$(kiln_download CONTAINER_TOOLKIT_KEY) || exit 1
signed_by=$(kiln_repo_key "$key" "$CONTAINER_TOOLKIT_KEY_FINGERPRINT" nvidia-container-toolkit) || exit 1
if [[ $KILN_FAMILY == debian ]]; then
    arch=$(dpkg --print-architecture) || kiln_die "dpkg does not print the architecture"
    printf 'deb [signed-by=%s] %s/%s /\n' "$signed_by" "$CONTAINER_TOOLKIT_REPO_URL" "$arch" \
        >/etc/apt/sources.list.d/nvidia-container-toolkit.list
else
    arch=$(uname -m) || kiln_die "uname does not print the architecture"
    # The vendor signs the repository's metadata, not its packages.
    kiln_yum_repo nvidia-container-toolkit "$CONTAINER_TOOLKIT_REPO_URL/$arch" "$signed_by" gpgcheck=0 repo_gpgcheck=1
fi
kiln_refresh
kiln_install_held "$CONTAINER_TOOLKIT_PACKAGES"
kiln_install_runtime etc/systemd/system/nvidia-cdi-refresh.service.d

answer=$(nvidia-ctk --version) || kiln_die "nvidia-ctk does not run"
[[ $answer =~ [0-9]+\.[0-9]+\.[0-9]+ ]] || kiln_die "nvidia-ctk prints no version: ${answer%%$'\n'*}"
version=${BASH_REMATCH[0]}
[[ $version == "$CONTAINER_TOOLKIT_VERSION" ]] || kiln_die "nvidia-ctk is $version, not $CONTAINER_TOOLKIT_VERSION"

runtimes=()
case $CONTAINER_RUNTIME_REGISTRY in
    # By a tool of NVIDIA's, which edits the configuration of each container runtime that is there.
    nvidia-ctk)
        ! command -v dockerd >/dev/null || runtimes+=(docker)
        ! command -v containerd >/dev/null || runtimes+=(containerd)
        # AL2's bash 4.2 calls an empty array unbound.
        for runtime in ${runtimes[@]+"${runtimes[@]}"}; do
            nvidia-ctk --quiet runtime configure --runtime="$runtime" >&2
        done
        ((${#runtimes[@]})) || kiln_say "no container runtime on this image: install one later and run nvidia-ctk runtime configure"
        ;;
    # By a file that Amazon's docker package turns into a flag of dockerd. When daemon.json names the runtime
    # too, dockerd takes that one. The ECS agent looks for GPUs only if its configuration enables that.
    docker-runtimes.d)
        [[ -x /usr/libexec/docker/docker-setup-runtimes.sh ]] || kiln_die "the parent has no docker of Amazon's" \
            "the flavor ecs needs an ECS-optimized parent AMI"
        ! grep -qs '"nvidia"' /etc/docker/daemon.json || kiln_die "/etc/docker/daemon.json of the parent names the runtime nvidia" \
            "dockerd would take that one instead of /etc/docker-runtimes.d/nvidia; use the ECS-optimized AMI as it is"
        mkdir -p /etc/docker-runtimes.d /var/lib/ecs
        printf '#!/bin/sh\nexec /usr/bin/nvidia-container-runtime "$@"\n' >/etc/docker-runtimes.d/nvidia
        chmod 0755 /etc/docker-runtimes.d/nvidia
        grep -qsx 'ECS_ENABLE_GPU_SUPPORT=true' /var/lib/ecs/ecs.config \
            || printf 'ECS_ENABLE_GPU_SUPPORT=true\n' >>/var/lib/ecs/ecs.config
        runtimes=(docker)
        ;;
    # At boot nodeadm writes containerd's configuration anew, and makes nvidia the default runtime where its
    # program is installed.
    nodeadm)
        command -v nodeadm >/dev/null || kiln_die "the parent has no nodeadm" "the flavor eks needs an EKS-optimized parent AMI"
        [[ -x /usr/bin/nvidia-container-runtime ]] || kiln_die "/usr/bin/nvidia-container-runtime is missing: nodeadm would not use it"
        ;;
esac
kiln_record "version=$version" "runtimes+=${runtimes[*]:-}" "registry=$CONTAINER_RUNTIME_REGISTRY"
