"""An environment as input of `docker build`: a Dockerfile over the environment's image, its lock and its script.

Users who may build images build one from it, with their own builder and index. The portal builds none: that needs rights on a
machine that tenants' packages and scripts must not have here.
"""

from __future__ import annotations

import gzip
import io
import tarfile

from clusters.catalog.models import Image
from clusters.environments.models import Environment
from portal.errors import Conflict

# Installs into the image's own Python, and only what the lock names.
DOCKERFILE = """FROM {container}
COPY requirements.txt script.sh /opt/environment/
RUN python -m pip install --no-cache-dir --no-deps --only-binary :all: --require-hashes -r /opt/environment/requirements.txt
RUN VIRTUAL_ENV="$(python -c 'import sys; print(sys.prefix)')" bash -e /opt/environment/script.sh
LABEL org.opencontainers.image.title="{name}" org.opencontainers.image.version="{version}"
"""


def build_context(environment: Environment) -> bytes:
    """A .tar.gz, identical at every call. Raises Conflict if the image has no container."""
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
