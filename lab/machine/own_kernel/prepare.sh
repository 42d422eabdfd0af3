#!/bin/sh
# Makes a disk of an AMI that boots by itself. Runs as the guest's root, without network, in a sandbox
# over the AMI's layers: what it changes is on the disk only, never in the AMI. Writes boot.img and the
# core of GRUB to its standard output.
#
#   prepare.sh FOLDER    FOLDER has: fstab, network, masked (units, one a line), remove (files)
set -eu
given=$1
say() { echo "prepare.sh: $*" >&2; exit 1; }

# The lab masks what a container does not need, and adds what replaces it.
while read -r unit; do
    link=/etc/systemd/system/$unit
    [ "$(readlink "$link" || true)" != /dev/null ] || rm "$link"
done <"$given/masked"
while read -r file; do
    rm -f "$file"
done <"$given/remove"

# cloud-init's first stage here is one that guests do not have: the later ones are forks of it.
stage=/etc/systemd/system/cloud-init.service.d/lab-stage.conf
if [ -e $stage ] && grep -q '^ExecStart=/usr/bin/cloud-init init --local$' /usr/lib/systemd/system/cloud-init-local.service; then
    mkdir -p /etc/systemd/system/cloud-init-local.service.d
    sed 's/ init$/ init --local/' $stage >/etc/systemd/system/cloud-init-local.service.d/lab-stage.conf
fi

# What a Debian image for EC2 has, and a lab's parent lacks as its disk is folders.
[ ! -s /etc/fstab ] || ! grep -qE '^[^#[:space:]]+[[:space:]]+/[[:space:]]' /etc/fstab \
    || say "/etc/fstab names a root already"
{ cat "$given/fstab"; cat /etc/fstab 2>/dev/null || true; } >/etc/fstab.new
mv /etc/fstab.new /etc/fstab
mkdir -p /etc/systemd/network
cp "$given/network" /etc/systemd/network/20-ec2.network
systemctl --quiet enable systemd-networkd.service

# As grub-install does it, but for the device: the lab writes the boot sector.
command -v grub-mkconfig >/dev/null || say "the image has no boot loader (grub-mkconfig)"
modules=/usr/lib/grub/i386-pc
mkdir -p /boot/grub/i386-pc
cp $modules/*.mod $modules/*.lst /boot/grub/i386-pc/
grub-mkconfig -o /boot/grub/grub.cfg 2>/tmp/grub.log || { cat /tmp/grub.log >&2; say "grub-mkconfig failed"; }
grub-mkimage -O i386-pc -p '(hd0,gpt1)/boot/grub' -o /tmp/core.img biosdisk part_gpt ext2
cat $modules/boot.img /tmp/core.img
rm -f /tmp/core.img /tmp/grub.log
