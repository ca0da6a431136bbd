"""The web application. It loads all pages before gunicorn forks, so that the processes share their memory."""

import os

from django.core.wsgi import get_wsgi_application
from django.urls import get_resolver

from portal.garbage import settle

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "portal.settings")
application = get_wsgi_application()
get_resolver().url_patterns  # noqa: B018 - loads them
# Also keeps the search for cycles from writing to memory that the processes share.
settle()
