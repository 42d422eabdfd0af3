#!/usr/bin/env bash
# Kernel settings and limits for EFA and NCCL, in effect from the next boot on. The files are rendered.
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

sysctls=etc/sysctl.d/60-kiln.conf
limits=etc/security/limits.d/60-kiln.conf
kiln_install_files "$sysctls" "$limits" etc/systemd/system.conf.d/60-kiln.conf

# At boot, a name that the kernel does not have is skipped without a message.
while IFS='=' read -r name value; do
    name=${name//[[:blank:]]/} value=${value#"${value%%[![:blank:]]*}"}
    [[ -n $name && $name != '#'* ]] || continue
    if [[ ! -e /proc/sys/${name//.//} ]]; then
        kiln_in_container || kiln_die "the kernel has no setting $name" "correct $sysctls of the component tuning"
        kiln_say "$name is not visible in this container"
    fi
    kiln_record "sysctls+=$name=$value"
done <"/$sysctls"

while read -r domain _ item value; do
    [[ $domain != root ]] || kiln_record "limits+=$item=$value"
done <"/$limits"
