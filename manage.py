#!/usr/bin/env python
"""The portal's command line. `manage.py up` makes what the settings need; other commands find it at the portal that runs."""

import os
import sys


def main() -> None:
    if sys.argv[1:2] == ["up"]:
        from portal.up.main import main as up

        sys.exit(up(sys.argv[2:]))
    from portal.up.running import settings_beside
    from portal.up.services import ServiceError

    try:
        os.environ |= settings_beside(os.environ)
    except ServiceError as error:
        sys.exit(str(error))
    os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
    if sys.argv[1:2] == ["front"]:
        from clusters.front.main import main as front

        sys.exit(front(sys.argv[2:]))
    from django.core.management import execute_from_command_line

    execute_from_command_line(sys.argv)


if __name__ == "__main__":
    main()
