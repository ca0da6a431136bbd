#!/usr/bin/env python
"""The portal's command line. `manage.py up` makes what the settings need; other commands find it at the portal that runs."""

import os
import sys


def main() -> None:
    if sys.argv[1:2] == ["up"]:
        from portal.up.main import main as up

        sys.exit(up(sys.argv[2:]))
    if sys.argv[1:] in (["version"], ["--version"]):
        # Django's own command would print the version of Django.
        from portal import __version__

        print(__version__)
        return
    if sys.argv[1:2] in (["backup"], ["restore"]):
        from portal.backup.main import main as backup

        sys.exit(backup(sys.argv[1:]))
    from portal.up.running import settings_beside
    from portal.up.services import ServiceError

    try:
        os.environ |= settings_beside(os.environ)
    except ServiceError as error:
        sys.exit(str(error))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    if sys.argv[1:2] == ["router"]:
        from clusters.router.main import main as router

        sys.exit(router(sys.argv[2:]))
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
