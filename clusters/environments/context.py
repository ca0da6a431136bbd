"""An environment as what `docker build` reads from a pipe: a Dockerfile over the environment's image, its lock, its script.

So whoever may build images makes one of it, with a builder and an index of their own; the portal builds none. Building needs
rights on a machine that tenants' packages and scripts must not have here.
"""

from __future__ import annotations

import gzip
import io
import tarfile

from clusters.models import Environment, Image
from portal.errors import Conflict

# Into the image's own Python, and never what the lock does not name.
DOCKERFILE = """FROM {container}
COPY requirements.txt script.sh /opt/environment/
RUN python -m pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes -r /opt/environment/requirements.txt
RUN VIRTUAL_ENV="$(python -c 'import sys; print(sys.prefix)')" bash -e /opt/environment/script.sh
LABEL org.opencontainers.image.title="{name}" org.opencontainers.image.version="{version}"
"""


def build_context(environment: Environment) -> bytes:
    """A .tar.gz, the same at every call. Raises Conflict where its image is no container's."""
    container = Image.objects.filter(name=environment.image).values_list("container", flat=True).first()
    if not container:
        raise Conflict(f"The image {environment.image} has no container, so nothing can be built over it.")
    name = f"{environment.appcode.code}/{environment.name}"
    files = {
        "Dockerfile": DOCKERFILE.format(container=container, name=name, version=environment.version),
        "requirements.txt": environment.lock,
        "script.sh": environment.script,
    }
    packed = io.BytesIO()
    with gzip.GzipFile("", "wb", fileobj=packed, mtime=0) as stream, tarfile.open(mode="w", fileobj=stream) as tar:
        for path, text in files.items():
            entry = tarfile.TarInfo(path)
            entry.size, entry.mtime = len(text.encode()), int(environment.created_at.timestamp())
            tar.addfile(entry, io.BytesIO(text.encode()))
    return packed.getvalue()
