#!/usr/bin/env bash
# The NVIDIA container toolkit, made known to whichever container runtimes the image has.
export KILN_COMPONENT=container-toolkit
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

key=$(kiln_download CONTAINER_TOOLKIT_KEY)
if [[ $KILN_FAMILY == debian ]]; then
    signed_by=$(kiln_repo_key "$key" "$CONTAINER_TOOLKIT_KEY_FINGERPRINT" nvidia-container-toolkit)
    printf 'deb [signed-by=%s] %s/%s /\n' "$signed_by" "$CONTAINER_TOOLKIT_REPO_URL" "$(dpkg --print-architecture)" \
        >/etc/apt/sources.list.d/nvidia-container-toolkit.list
else
    gpgkey=$(kiln_repo_key "$key" "$CONTAINER_TOOLKIT_KEY_FINGERPRINT" nvidia-container-toolkit)
    # The vendor signs the repository's metadata, not its packages.
    cat >/etc/yum.repos.d/nvidia-container-toolkit.repo <<REPO
[nvidia-container-toolkit]
name=NVIDIA container toolkit
baseurl=$CONTAINER_TOOLKIT_REPO_URL/$(uname -m)
enabled=1
gpgcheck=0
repo_gpgcheck=1
gpgkey=$gpgkey
skip_if_unavailable=0
REPO
fi
kiln_refresh
read -ra packages <<<"$CONTAINER_TOOLKIT_PACKAGES"
mapfile -t names < <(kiln_names "${packages[@]}")
kiln_unhold "${names[@]}"
kiln_install "${packages[@]}"
kiln_hold "${names[@]}"

version=$(nvidia-ctk --version | grep -oE '[0-9]+\.[0-9]+\.[0-9]+' | head -n 1)
[[ $version == "$CONTAINER_TOOLKIT_VERSION" ]] || kiln_die "nvidia-ctk is ${version:-missing}, not $CONTAINER_TOOLKIT_VERSION"

runtimes=()
if command -v dockerd >/dev/null; then runtimes+=(docker); fi
if command -v containerd >/dev/null; then runtimes+=(containerd); fi
# AL2's bash 4.2 calls an empty array unset.
for runtime in ${runtimes[@]+"${runtimes[@]}"}; do
    nvidia-ctk --quiet runtime configure --runtime="$runtime" >&2 || kiln_die "nvidia-ctk cannot configure $runtime"
done
((${#runtimes[@]})) || kiln_say "no container runtime on this image: install one later and run nvidia-ctk runtime configure"
kiln_record "version=$version" "packages+=${names[*]}" "runtimes+=${runtimes[*]:-}"
