"""Makes the driver of a datastore."""

from __future__ import annotations

from collections.abc import Mapping

from datastores.drivers.base import Driver, NotPossible
from datastores.specs import Kind


def driver_for(
    kind: Kind, fields: Mapping[str, str], secret: str = "", *, root: str | None = None, read_only: bool = False
) -> Driver:
    """`fields` and `secret` are those of a Datastore row; `root` is the allowed folder of a `local` one, or None.
    Drivers are imported when needed: the S3 client alone takes 30 MB, which most processes of the portal never use."""
    match kind:
        case "s3":
            from datastores.drivers.s3 import S3

            return S3(secret=secret, **fields)
        case "nfs":
            from datastores.drivers.nfs import Nfs

            return Nfs(**fields)
        case "volume":
            from datastores.drivers.volume import Volume

            return Volume()
        case "local":
            from datastores.drivers.local import Local

            if root is None:
                raise NotPossible(
                    "This folder is not one that an administrator allowed; ask them for another or to allow it.", "path"
                )
            return Local(root=root, path=fields["path"], read_only=read_only)
