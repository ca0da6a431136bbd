#!/bin/bash
# The machine under a test node: its own network, mounts, processes and host name, which all end with this program's
# standard input. So they do when whoever holds its other end is killed, and nothing of them is left on the host then.
#
#     machine.sh outside NAME LINK FOLDER     NAME: of the machine and of its cgroups; LINK: its network device on the host
#
# Prints the process id of the machine's init when it is up, for nsenter. FOLDER is removed at the end.
set -euo pipefail
name=$2 link=$3 folder=$4

outside() {
    trap '' INT TERM HUP
    unshare --net --mount --pid --uts --fork --kill-child -- bash "$0" inside "$name" "$link" "$folder" || true
    ip link delete "$link" 2>/dev/null || true
    # Processes that were just killed may count for a moment more.
    for _ in 1 2 3 4 5 6 7 8 9 10; do
        find /sys/fs/cgroup -depth -type d -path "*/$name*" -exec rmdir {} + 2>/dev/null || true
        [ -z "$(find /sys/fs/cgroup -maxdepth 2 -type d -name "$name")" ] && break
        sleep 0.1
    done
    rm -rf --one-file-system -- "$folder"
}

inside() {
    # Before /proc is that of the machine.
    read -r pid _ </proc/self/stat
    hostname "$name"
    ip link set lo up
    resolver=$(readlink -m /etc/resolv.conf)
    mount -t proc proc /proc
    # What the programs keep where only their defaults say.
    for path in /run /var/log /var/lib/cni /var/lib/kubelet; do
        mkdir -p "$path"
        mount -t tmpfs tmpfs "$path"
    done
    mkdir -p /run/netns /run/lock
    # Nothing can be pulled from anywhere; it is not waited for.
    mkdir -p "$(dirname "$resolver")" && touch -a "$resolver"
    mount --bind "$folder/resolv.conf" "$resolver"
    # The kubelet tunes the kernel. There is only one kernel, so what it writes goes nowhere.
    for key in vm/overcommit_memory vm/panic_on_oom kernel/panic kernel/panic_on_oops kernel/keys/root_maxkeys kernel/keys/root_maxbytes; do
        file=$folder/sysctl-${key//\//-}
        cat "/proc/sys/$key" >"$file"
        mount --bind "$file" "/proc/sys/$key"
    done
    echo "$pid"
    exec >&-
    # As the first process it inherits those whose parents have ended, and bash sees them off.
    while read -r _; do :; done
}

"$1"
