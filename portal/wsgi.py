"""The web application. It has loaded all pages before gunicorn forks: what is loaded later, each process has for itself."""

import os

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
application = get_wsgi_application()
get_resolver().url_patterns  # noqa: B018 - loads them
