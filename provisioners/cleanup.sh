#!/usr/bin/env bash
# Removes everything that belongs to the build instance and not to the image: identities, keys, histories,
# logs, caches, cloud-init's state. Runs last, as root; hygiene.sh proves the result.
export KILN_COMPONENT=cleanup
# shellcheck source=provisioners/lib/kiln.sh
source "${KILN_DIR:?}/lib/kiln.sh"

# What writes state or logs must not write them again after they are removed. None of it exists on every image.
# Timers start what writes too: sysstat-collect, dnf-makecache, logrotate.
systemctl stop '*.timer' amazon-cloudwatch-agent amazon-ssm-agent snap.amazon-ssm-agent.amazon-ssm-agent \
    ecs amazon-ecs-volume-plugin.socket amazon-ecs-volume-plugin docker.socket docker \
    kiln-xid kiln-mig unattended-upgrades cron crond atd sysstat syslog.socket rsyslog 2>/dev/null || true
# auditd refuses to be stopped by systemd; its own init script can stop it.
if command -v auditctl >/dev/null; then service auditd stop >/dev/null 2>&1 || auditctl -e 0 >/dev/null 2>&1 || true; fi

kiln_restore_sources
kiln_forget_mirrors
kiln_skip_unavailable
case $KILN_PACKAGE_MANAGER in
    apt)
        apt-get -qq clean
        rm -rf /var/lib/apt/lists/* /var/cache/apt/*.bin
        ;;
    *) rm -rf /var/cache/yum /var/cache/dnf ;;
esac

# Python starts slowly, so it works beside what follows; `wait` is below.
cloud_init=
if command -v cloud-init >/dev/null; then
    { cloud-init clean --logs --seed || cloud-init clean --logs; } >/dev/null 2>&1 &
    cloud_init=$!
fi

homes=$(getent passwd | awk -F: '$6 ~ "^/" && $6 != "/" { print $6 }' | sort -u) || kiln_die "the users' homes cannot be listed"
left=()
while read -r home; do
    [[ -d $home ]] || continue
    # Packer's temporary SSH key is among them. The session in use goes on.
    left+=("$home"/.ssh/{authorized_keys,authorized_keys2,known_hosts,known_hosts.old,config} "$home"/.ssh/id_*
        "$home"/.{bash,zsh,sh,python,mysql,psql,node_repl}_history "$home"/.{lesshst,viminfo,wget-hsts,netrc}
        "$home"/.sudo_as_admin_successful "$home"/.git-credentials "$home"/.aws "$home"/.docker "$home"/.kube)
    case $home in /root | /home/*) left+=("$home"/.cache "$home"/.gnupg "$home"/.local/share/recently-used*) ;; esac
done <<<"$homes"
((${#left[@]} == 0)) || rm -rf "${left[@]}"
rm -f /etc/ssh/ssh_host_*_key /etc/ssh/ssh_host_*_key.pub

# The agent's offsets and its translated configuration belong to the instance that wrote them.
rm -rf /opt/aws/amazon-cloudwatch-agent/logs/* /opt/aws/amazon-cloudwatch-agent/var/*
rm -f /opt/aws/amazon-cloudwatch-agent/etc/{amazon-cloudwatch-agent.toml,amazon-cloudwatch-agent.yaml,env-config.json,log-config.json}
rm -rf /var/lib/amazon/ssm/* /var/snap/amazon-ssm-agent/common/* /var/snap/amazon-ssm-agent/current/*
rm -rf /var/lib/gpu-xid /var/lib/gpu-mig /var/lib/kiln
# The private keys that DKMS made to sign its modules, on Ubuntu with shim's tool: whoever has the image would have
# them too. DKMS makes new ones for its next build.
rm -f /var/lib/dkms/mok.{key,pub} /var/lib/shim-signed/mok/MOK.*
# The ECS agent's registration: with it every instance would say that it is the build instance.
rm -rf /var/lib/ecs/data/* /var/lib/ecs/gpu /var/log/ecs/*

rm -rf /var/lib/dhcp/* /var/lib/dhclient/* /var/lib/NetworkManager/*.lease /var/lib/systemd/random-seed \
    /var/lib/systemd/credential.secret /var/lib/systemd/timers/* /var/lib/private/* /var/crash/* /var/lib/update-notifier/*

if [[ -n $cloud_init ]]; then
    wait "$cloud_init" || true
    # AL2's cloud-init (19.3) leaves its instance data behind when a mount is busy.
    rm -rf /var/lib/cloud/instances /var/lib/cloud/instance /var/lib/cloud/data /var/lib/cloud/sem /var/lib/cloud/seed
fi

# journald creates deleted files again within five seconds: until the reboot it writes to /run.
mkdir -p /run/systemd/journald.conf.d
printf '[Journal]\nStorage=volatile\n' >/run/systemd/journald.conf.d/kiln-bake.conf
systemctl restart systemd-journald
rm -rf /var/log/journal/*

# Empty, not "uninitialized": the latter makes systemd apply every unit's preset at the first boot, which
# would enable units that are disabled on purpose. An empty file gets a new id too.
: >/etc/machine-id
rm -f /var/lib/dbus/machine-id
[[ ! -d /var/lib/dbus ]] || ln -s /etc/machine-id /var/lib/dbus/machine-id

find /var/log -type f \( -name '*.gz' -o -name '*.xz' -o -name '*.old' -o -name '*.[0-9]' -o -name '*-[0-9][0-9][0-9][0-9][0-9][0-9][0-9][0-9]*' \) -delete
find /var/log -type f ! -path '/var/log/journal/*' -exec truncate -s 0 {} +
rm -rf /var/log/gpuevent.log* /var/log/nvidia-installer.log /var/log/sa/* /var/log/sysstat/*
# Sessions and the shutdown are recorded only in files that exist; systemd-tmpfiles makes them at the next boot.
rm -f /var/log/{wtmp,btmp,lastlog}

# systemd's private folders belong to services that still run, and are removed with them.
find /tmp /var/tmp -mindepth 1 -maxdepth 1 ! -name 'systemd-private-*' ! -name '.*-unix' ! -path "$0" -exec rm -rf {} +
sync
printf 'kiln: cleanup: done\n' >&2
