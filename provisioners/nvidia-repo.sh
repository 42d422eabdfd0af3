#!/usr/bin/env bash
# NVIDIA's CUDA repository, which holds drivers, CUDA, cuDNN, NCCL and DCGM. Its key is accepted by
# fingerprint only, and packages are checked against it.
#
#@ env      CUDA_REPO                 required  the repository's name for this distribution: rhel7, ubuntu2204
#@ env      CUDA_REPO_URL             required  its URL for this architecture
#@ env      CUDA_LIBRARIES_REPO_URL   optional  another of NVIDIA's repositories, for cuDNN and NCCL alone (RPM)
#@ env      CUDA_RPM_KEY_FINGERPRINT  required  of the key that signs RPMs
#@ env      CUDA_DEB_KEY_FINGERPRINT  required  of the key that signs Debian repositories
#@ download CUDA_REPO_KEY             required  the family's key file
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

key=$(kiln_download CUDA_REPO_KEY) || exit 1
if [[ $KILN_FAMILY == debian ]]; then
    signed_by=$(kiln_repo_key "$key" "$CUDA_DEB_KEY_FINGERPRINT" nvidia-cuda) || exit 1
    printf 'deb [signed-by=%s] %s/ /\n' "$signed_by" "$CUDA_REPO_URL" >/etc/apt/sources.list.d/nvidia-cuda.list
else
    signed_by=$(kiln_repo_key "$key" "$CUDA_RPM_KEY_FINGERPRINT" nvidia-cuda) || exit 1
    kiln_yum_repo nvidia-cuda "$CUDA_REPO_URL" "$signed_by" gpgcheck=1
    # Amazon Linux 2023's repository of NVIDIA had these libraries late; EL 9's has them, signed by the same key.
    # Nothing else may come from there.
    rm -f /etc/yum.repos.d/nvidia-cuda-libraries.repo
    [[ -z $CUDA_LIBRARIES_REPO_URL ]] || kiln_yum_repo nvidia-cuda-libraries "$CUDA_LIBRARIES_REPO_URL" "$signed_by" \
        gpgcheck=1 'includepkgs=libcudnn* libnccl*'
fi
kiln_refresh
kiln_record "version=$CUDA_REPO" "url=$CUDA_REPO_URL"
