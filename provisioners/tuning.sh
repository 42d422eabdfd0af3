#!/usr/bin/env bash
# Kernel settings and limits for EFA and NCCL: what components.yaml says, from the next boot on.
export KILN_COMPONENT=tuning
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

sysctls=etc/sysctl.d/60-kiln.conf
kiln_install_files "$sysctls" etc/security/limits.d/60-kiln.conf etc/systemd/system.conf.d/60-kiln.conf

# At boot a name that the kernel does not have is passed over in silence.
while IFS='=' read -r name value; do
    if [[ ! -e /proc/sys/${name//.//} ]]; then
        kiln_in_container || kiln_die "the kernel has no setting $name" "mend $sysctls in components.yaml"
        kiln_say "$name is not to be seen in this container"
    fi
    kiln_record "sysctls+=$name=$value"
done < <(sed -E '/^[[:space:]]*(#|$)/d; s/[[:space:]]*=[[:space:]]*/=/' "/$sysctls")

while read -r _ _ item value; do
    kiln_record "limits+=$item=$value"
done < <(grep '^root ' /etc/security/limits.d/60-kiln.conf)
