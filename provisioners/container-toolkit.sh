#!/usr/bin/env bash
# The NVIDIA container toolkit, configured for each container runtime that the image has.
#
#@ env      CONTAINER_TOOLKIT_VERSION          required  as nvidia-ctk prints it
#@ env      CONTAINER_TOOLKIT_PACKAGES         required  name=version …
#@ env      CONTAINER_TOOLKIT_REPO_URL         required  repository, without the architecture
#@ env      CONTAINER_TOOLKIT_KEY_FINGERPRINT  required  of the key that signs the repository
#@ download CONTAINER_TOOLKIT_KEY              required  key file, accepted by fingerprint only
export KILN_COMPONENT=container-toolkit
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
    cat >/etc/yum.repos.d/nvidia-container-toolkit.repo <<REPO
[nvidia-container-toolkit]
name=NVIDIA container toolkit
baseurl=$CONTAINER_TOOLKIT_REPO_URL/$arch
enabled=1
gpgcheck=0
repo_gpgcheck=1
gpgkey=$signed_by
skip_if_unavailable=0
REPO
fi
kiln_refresh
kiln_install_held "$CONTAINER_TOOLKIT_PACKAGES"

answer=$(nvidia-ctk --version) || kiln_die "nvidia-ctk does not run"
[[ $answer =~ [0-9]+\.[0-9]+\.[0-9]+ ]] || kiln_die "nvidia-ctk prints no version: ${answer%%$'\n'*}"
version=${BASH_REMATCH[0]}
[[ $version == "$CONTAINER_TOOLKIT_VERSION" ]] || kiln_die "nvidia-ctk is $version, not $CONTAINER_TOOLKIT_VERSION"

runtimes=()
if command -v dockerd >/dev/null; then runtimes+=(docker); fi
if command -v containerd >/dev/null; then runtimes+=(containerd); fi
# AL2's bash 4.2 calls an empty array unbound.
for runtime in ${runtimes[@]+"${runtimes[@]}"}; do
    nvidia-ctk --quiet runtime configure --runtime="$runtime" >&2 || kiln_die "nvidia-ctk cannot configure $runtime"
done
((${#runtimes[@]})) || kiln_say "no container runtime on this image: install one later and run nvidia-ctk runtime configure"
kiln_record "version=$version" "runtimes+=${runtimes[*]:-}"
