"""Execs SeaweedFS inside network and mount namespaces made for it: `… inside DIR SOCKETS WEED`.

It brings the loopback interface up and mounts an empty /tmp over the machine's, because SeaweedFS puts sockets without
authentication there. Paths below /tmp (a test's data folder) stay reachable by handles opened before.
"""

from __future__ import annotations

import fcntl
import os
import socket
import struct
import subprocess
import sys

_SIOCGIFFLAGS, _SIOCSIFFLAGS, _IFF_UP = 0x8913, 0x8914, 1
_FLAGS = struct.Struct("16sh14x")
# 1 GiB: a bucket consists of files of up to this size.
VOLUME_MB = 1024
METRICS_PORT = 9327
MASTER_PORT = 9333  # its default
# It holds several copies of each incoming chunk, ten chunks per client at once, so small chunks keep its memory small.
CHUNK_MB = 1
# Go reports 250 MB of heap from the start, mostly buffers that are never touched. With a lower limit its collector
# would run all the time (6 % of a core when idle); a GOGC this low runs it after 25 MB.
MEMORY = {"GOMEMLIMIT": "512MiB", "GOGC": "10"}
# Only warnings go to stderr: the full log names access keys. It stays in /tmp while the store runs, a few MB.
LOGGING = ("-v=-1", "-alsologtostderr=false", "-stderrthreshold=1", "-log_max_size_mb=1")
OPTIONS = (
    "-s3.port.iceberg=0",
    "-s3.port.lance=0",
    "-s3.autoCreateBucket=false",
    f"-filer.maxMB={CHUNK_MB}",
    "-filer.disableDirListing",
    f"-master.volumeSizeLimitMB={VOLUME_MB}",
    "-master.telemetry=false",
    # A master without others need not wait 10 s for them, during which nothing can be read.
    "-master.electionTimeout=1s",
    "-volume.max=0",
    "-volume.preStopSeconds=0",
    "-volume.index=leveldb",
)


def main(folder: str, sockets: str, weed: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        name, flags = _FLAGS.unpack(fcntl.ioctl(any_socket, _SIOCGIFFLAGS, _FLAGS.pack(b"lo", 0)))
        fcntl.ioctl(any_socket, _SIOCSIFFLAGS, _FLAGS.pack(name, flags | _IFF_UP))
    data, run, program = (os.open(path, os.O_PATH) for path in (folder, sockets, weed))
    for handle in (data, run):
        os.set_inheritable(handle, True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", "mode=700,size=64m", "storage", "/tmp"], check=True)  # noqa: S108
    os.umask(0o077)
    os.chdir("/tmp")  # noqa: S108
    at = "127.0.0.1"
    argv = ["weed", *LOGGING, "server", f"-dir=/proc/self/fd/{data}", f"-ip={at}", f"-ip.bind={at}", "-filer", "-s3"]
    argv += [f"-s3.localSocket=/proc/self/fd/{run}/s3", "-filer.localSocket=/tmp/filer.sock", "-s3.iam.readOnly=false"]
    # The gateway decides which browser origins are allowed.
    argv += ["-s3.allowedOrigins=", "-s3.allowDeleteBucketNotEmpty=false", *OPTIONS]
    argv += [f"-metricsPort={METRICS_PORT}", f"-metricsIp={at}"]
    os.execve(f"/proc/self/fd/{program}", argv, dict(os.environ))  # noqa: S606  no shell is the point


if __name__ == "__main__":
    main(*sys.argv[1:])
