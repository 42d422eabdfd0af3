#!/bin/bash
# AMI Kiln lab stand-in for the EFA installer @efa@: its options, its package names, empty libraries.
set -euo pipefail

usage() {
    echo "Usage: $0 [options] (AMI Kiln lab stand-in for EFA installer @efa@)"
}

newer() { [[ $(printf '%s\n%s\n' "$1" @efa@ | sort -V | head -n 1) == "$1" ]]; }

yes=no minimal=no kmod=yes mpi=both plugin=yes rdma=yes uninstall=no
while [[ $# -gt 0 ]]; do
    case $1 in
        -y | --yes) yes=yes ;;
        -g | --enable-gdr | -l | --skip-limit-conf | -n | --no-verify | -d | --debug-packages | -t | --test) ;;
        -k | --skip-kmod) kmod=no ;;
        -m | --minimal) minimal=yes ;;
        -u | --uninstall) uninstall=yes ;;
        --mpi=openmpi4 | --mpi=openmpi5) mpi=${1#--mpi=} ;;
        --skip-mpi) mpi=none ;;
        --skip-plugin) newer 1.38.0 || { usage >&2; exit 1; }; plugin=no ;;
        --skip-rdma-core) rdma=no ;;
        --build-ngc) ;;
        --check-signatures) newer 1.48.0 || { usage >&2; exit 1; } ;;
        -h | --help) usage; exit 0 ;;
        *) echo "Unknown option: $1" >&2; usage >&2; exit 1 ;;
    esac
    shift
done

# shellcheck disable=SC1091
. /etc/os-release
case $ID$VERSION_ID in
    amzn2) distro=al2 ;;
    amzn2023) distro=al2023 ;;
    ubuntu20.04) distro=ubuntu2004 ;;
    ubuntu22.04) distro=ubuntu2204 ;;
    ubuntu24.04) distro=ubuntu2404 ;;
    debian12) distro=debian12 ;;
    *) distro=unknown ;;
esac
if ! grep -qxF "$distro" supported; then
    echo "Error: the OS $ID $VERSION_ID is not supported by EFA installer @efa@" >&2
    exit 1
fi
[[ $EUID -eq 0 ]] || { echo "This script must be run as root." >&2; exit 1; }
case $distro in
    al*) tool=rpm ;;
    *) tool=deb ;;
esac

if [[ $uninstall == yes ]]; then
    while read -r name; do
        case $tool in
            rpm) ! rpm -q "$name" > /dev/null || rpm -e --nodeps "$name" ;;
            deb) ! dpkg-query -W "$name" > /dev/null 2>&1 || dpkg --purge --force-depends "$name" ;;
        esac
    done < "$tool.names"
    rm -f /opt/amazon/efa_installed_packages
    exit 0
fi
if [[ $yes == no ]]; then
    read -r -p "Do you want to continue? [y/N] " answer
    [[ $answer == [yY]* ]] || exit 1
fi

packages=./packages/$(uname -m)
chosen=()
while read -r name; do
    case $name in
        efa-nv-peermem*) [[ $kmod == yes && -e /var/lib/kiln-lab/driver.json ]] || continue ;;
        efa-config* | efa-profile*) ;;
        efa[-_][0-9]*) [[ $kmod == yes ]] || continue ;;
        rdma-core* | libibverbs*) [[ $rdma == yes ]] || continue ;;
        openmpi40*) [[ $minimal == no && ($mpi == both || $mpi == openmpi4) ]] || continue ;;
        openmpi50*) [[ $minimal == no && ($mpi == both || $mpi == openmpi5) ]] || continue ;;
        libnccl-ofi*)
            [[ $minimal == no && $plugin == yes ]] || continue
            grep -qxF "$distro" "plugin.$(uname -m)" || continue
            ;;
        libfabric*) [[ $minimal == no ]] || continue ;;
    esac
    chosen+=("$name")
done < <(find "$packages" -name "*.$tool" -printf '%f\n' | sed "s/\.$tool\$//" | LC_ALL=C sort)

echo "= Starting Amazon Elastic Fabric Adapter Installation Script = (AMI Kiln lab stand-in)"
echo "= EFA Installer Version: @efa@ ="
files=("${chosen[@]/#/$packages/}")
files=("${files[@]/%/.$tool}")
if [[ $tool == rpm ]]; then
    yum -y -q --disablerepo='*' --nogpgcheck install "${files[@]}"
else
    DEBIAN_FRONTEND=noninteractive dpkg --force-confold -i "${files[@]}" > /dev/null
fi
ldconfig
mkdir -p /opt/amazon
{
    echo "# EFA installer version: @efa@"
    echo "# Debug packages installed: no"
    echo "# Packages installed:"
    echo "${chosen[*]}"
} > /opt/amazon/efa_installed_packages
echo "==================================================="
echo "EFA installation complete."
echo "- Please logout/login to complete the installation."
echo "- Libfabric was installed in /opt/amazon/efa"
echo "==================================================="
