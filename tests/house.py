"""A server of S3 and IAM as a house has it, with nothing of the portal before it."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from portal.up import services
from tests import ports
from tests.running import eventually


@contextmanager
def house(folder: Path) -> Iterator[dict[str, str]]:
    """What settings.STORAGE says of one with its data in `folder`, which is made."""
    folder.mkdir(exist_ok=True)
    keys = {"access_key": "HOUSE", "secret": "secret-of-the-house"}
    argv = [
        str(services.program("weed")),
        "server",
        f"-dir={folder}",
        "-ip=127.0.0.1",
        "-ip.bind=127.0.0.1",
        "-filer",
        "-s3",
    ]
    argv += ["-s3.iam.readOnly=false", "-s3.port.iceberg=0", "-s3.port.lance=0"]
    argv += ["-master.volumeSizeLimitMB=64", "-volume.max=0"]
    listens = {"s3": ports.free(), **{name: services.free_port() for name in ("master", "volume", "filer")}}
    argv += [f"-{name}.port={port}" for name, port in listens.items()]
    argv += [f"-{name}.port.grpc={services.free_port()}" for name in listens]
    argv += [f"-filer.localSocket={folder}/filer.sock"]
    env = {"PATH": os.environ["PATH"], "AWS_ACCESS_KEY_ID": keys["access_key"], "AWS_SECRET_ACCESS_KEY": keys["secret"]}
    log, ready = folder / "log.txt", services.http_ready(listens["s3"])
    with log.open("w") as said, subprocess.Popen(argv, env=env, stdout=said, stderr=said) as server:
        try:
            url = f"http://127.0.0.1:{listens['s3']}"
            answers = eventually(lambda: ready() or server.poll() is not None) and server.poll() is None
            assert answers, log.read_text()[-3000:]
            yield {"url": url, "inner_url": url, **keys}
        finally:
            server.kill()
