"""A minimal third-party S3 server: it starts in half a second, faster than the portal's object storage, and keeps objects as
plain files that tests can read."""

from __future__ import annotations

from pathlib import Path

from portal.up.services import Service, ask, private_folder, program


def s3(folder: Path, port: int, access_key: str, secret_key: str, address: str = "127.0.0.1") -> Service:
    """An S3 server over `folder`: each subfolder is a bucket. Other machines reach it only if `address` is an external one.

    Supports only what the portal and its runs use: rclone 1.75 accepts requests for tags, ACLs, holds, part copies and
    conditions, but destroys or replaces the object.
    """
    private_folder(folder)
    # The ETag is the file's MD5, cached here; without the cache rclone reads every file for each listing, HEAD and range request.
    hashes = private_folder(folder.with_name(f"{folder.name}-hashes"))
    quoted = str(folder).replace('"', '""')
    remote = f':hasher,remote="{quoted}",hashes=md5,max_age=off:'
    # --config '': never read or write the user's own rclone settings. RCLONE_AUTH_KEY is a comma separated list with one element.
    argv = [program("rclone"), "serve", "s3", remote, "--addr", f"{address}:{port}", "--config", ""]
    argv += ["--cache-dir", str(hashes), "--dir-cache-time", "1s", "--buffer-size", "0", "--log-level", "NOTICE"]
    # Upload parts that arrive out of order wait in memory.
    argv += ["--multipart-streaming-buffer-limit", "48Mi"]
    env = {"RCLONE_AUTH_KEY": f'"{access_key},{secret_key}"', "GOMEMLIMIT": "128MiB", "GOGC": "50"}

    def ready() -> bool:
        return ask(port, b"GET / HTTP/1.0\r\n\r\n", address).startswith(b"HTTP/")

    return Service("s3", tuple(argv), ready, f"http://{address}:{port}", env, stop_order=9)
