"""An S3 server of somebody else, as small as one can be: it starts in half a second, where the object storage of the portal takes
some, and the tests see on the disk what was stored."""

from __future__ import annotations

from pathlib import Path

from portal.up.services import Service, ask, private_folder, program


def s3(folder: Path, port: int, access_key: str, secret_key: str, address: str = "127.0.0.1") -> Service:
    """An S3 server over `folder`: every folder in it is a bucket. Other machines reach it only at an `address` of theirs.

    For what the portal and its runs ask, and nothing else: rclone 1.75 says yes to tags, ACLs, holds, copies of parts and
    conditions, and destroys or replaces the object.
    """
    private_folder(folder)
    # A file's MD5 is its ETag. It is remembered here; rclone would read every file for each listing, HEAD and range of it.
    hashes = private_folder(folder.with_name(f"{folder.name}-hashes"))
    quoted = str(folder).replace('"', '""')
    remote = f':hasher,remote="{quoted}",hashes=md5,max_age=off:'
    # --config '': never read or write the user's own rclone settings. The pair is one element of a comma separated list.
    argv = [program("rclone"), "serve", "s3", remote, "--addr", f"{address}:{port}", "--config", ""]
    argv += ["--cache-dir", str(hashes), "--dir-cache-time", "1s", "--buffer-size", "0", "--log-level", "NOTICE"]
    # Parts of an upload that come before their turn wait in memory.
    argv += ["--multipart-streaming-buffer-limit", "48Mi"]
    env = {"RCLONE_AUTH_KEY": f'"{access_key},{secret_key}"', "GOMEMLIMIT": "128MiB", "GOGC": "50"}

    def ready() -> bool:
        return ask(port, b"GET / HTTP/1.0\r\n\r\n", address).startswith(b"HTTP/")

    return Service("s3", tuple(argv), ready, f"http://{address}:{port}", env, stop_order=9)
