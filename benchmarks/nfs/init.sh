#!/bin/bash
# The first process of the kernel that `python -m benchmarks.nfs` boots. Nothing that it mounts is seen by the host.
export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
trap 'halt --force --poweroff' EXIT

mount -t proc proc /proc
mount -t sysfs sys /sys
for folder in /run /tmp /mnt /dev/shm /lib/modules /var/lib/nfs; do
    mkdir -p "$folder"
    mount -t tmpfs tmpfs "$folder"
done
ip link set lo up

cp -r "/usr/lib/uml/modules/$(uname -r)" /lib/modules/
depmod
modprobe nfsd
modprobe nfsv4

mkdir -p /mnt/export /mnt/one /mnt/other /var/lib/nfs/v4recovery
touch /var/lib/nfs/etab /var/lib/nfs/rmtab
mount -t tmpfs tmpfs /mnt/export
mount -t nfsd nfsd /proc/fs/nfsd
# The server takes both mounts for one client, to which it would lend a file for both caches.
echo 0 > /proc/sys/fs/leases-enable
exportfs -o rw,fsid=0,no_root_squash,insecure,no_subtree_check '*:/mnt/export'
rpc.nfsd --grace-time 10 --lease-time 10 --no-nfs-version 3 4
rpc.mountd --no-nfs-version 3
for folder in /mnt/one /mnt/other; do
    mount -t nfs4 -o vers=4.2,nosharecache 127.0.0.1:/ "$folder" || exit
done

cd "$(dirname "$0")/../.." || exit
PYTHONPATH=$PWD "$PYTHON" -m benchmarks.nfs.inside > "$OUTPUT/stdout" 2> "$OUTPUT/stderr"
echo $? > "$OUTPUT/done"
