#!/bin/bash
# The machine of a test node: its own network, mounts, processes and host name. All of them end when this program's standard input
# closes, also if the process at its other end is killed, and nothing is left on the host.
#
#     machine.sh outside NAME LINK FOLDER     NAME: the machine's and its cgroups'; LINK: its network device on the host
#
# Prints the pid of the machine's init once it runs, for nsenter. Deletes FOLDER at the end.
set -euo pipefail
name=$2 link=$3 folder=$4

outside() {
    trap '' INT TERM HUP
    unshare --net --mount --pid --uts --fork --kill-child -- bash "$0" inside "$name" "$link" "$folder" || true
    ip link delete "$link" 2>/dev/null || true
    # Processes that were just killed may count for another moment.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        find /sys/fs/cgroup -depth -type d -path "*/$name*" -exec rmdir {} + 2>/dev/null || true
        [ -z "$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$name")" ] && break
        sleep 0.1
    done
    rm -rf --one-file-system -- "$folder"
}

inside() {
    # Read the pid before /proc becomes the machine's.
    read -r pid _ </proc/self/stat
    hostname "$name"
    ip link set lo up
    resolver=$(readlink -m /etc/resolv.conf)
    mount -t proc proc /proc
    # State folders of programs that cannot be configured.
    for path in /run /var/log /var/lib/cni /var/lib/kubelet; do
        mkdir -p "$path"
        mount -t tmpfs tmpfs "$path"
    done
    mkdir -p /run/netns /run/lock
    # Nothing can be pulled, and this makes pulls fail at once.
    mkdir -p "$(dirname "$resolver")" && touch -a "$resolver"
    mount --bind "$folder/resolv.conf" "$resolver"
    # The kubelet tunes the kernel, which the host shares: redirect its writes.
    for key in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
        file=$folder/sysctl-${key//\//-}
        cat "/proc/sys/$key" >"$file"
        mount --bind "$file" "/proc/sys/$key"
    done
    echo "$pid"
    exec >&-
    # As process 1 it inherits orphans, which bash reaps.
    while read -r _; do :; done
}

"$1"
