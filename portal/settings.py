"""Django settings. Everything that differs between machines comes from the environment.

`manage.py up` sets these variables on a single machine; other deployments set them themselves (docs/deployment.md). Secrets come
only from the environment, or from the file that NAME_FILE names there. The defaults are safe: without PORTAL_DEBUG, no error page
shows internals.
"""

import logging
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import django_stubs_ext
import environ
from django.core.exceptions import ImproperlyConfigured
from django.http.request import split_domain_port

from portal import assets
from portal.monitoring import logs
from portal.network import outgoing
from portal.terms import MAX_DAYS

django_stubs_ext.monkeypatch()

BASE_DIR = Path(__file__).resolve().parent.parent


class _OneLine(environ.fileaware_mapping.FileAwareMapping):  # type: ignore[misc]
    """Strips the newline that most secret files end with."""

    def __getitem__(self, name: str) -> str:
        return str(super().__getitem__(name)).rstrip("\n")


env = environ.Env()
env.ENVIRON = _OneLine()

DATA_DIR = Path(env.str("PORTAL_DATA", default=str(BASE_DIR / "var"))).resolve()
SECRET_KEY = env.str("PORTAL_SECRET_KEY")
# Older keys, which still open what they signed or encrypted (portal/installation/rotation.py).
SECRET_KEY_FALLBACKS = [*filter(None, env.list("PORTAL_SECRET_KEY_FALLBACKS", default=[]))]
# Stored secrets are encrypted with a key derived from the secret key and the first of these. Each of these together with each
# secret key opens what is stored.
SALT_KEY = env.list("PORTAL_SALT_KEYS", default=[SECRET_KEY, *SECRET_KEY_FALLBACKS])
DEBUG = env.bool("PORTAL_DEBUG", default=False)
PORTAL_ORIGIN = env.str("PORTAL_ORIGIN", default="http://portal.localhost:8000")
_origin = urlsplit(PORTAL_ORIGIN)
_port = f":{_origin.port}" if _origin.port else ""
SECURE = _origin.scheme == "https"
# The portal answers to these names, at the port of PORTAL_ORIGIN and the ports listed here (portal/web/gateway.py).
_listed = [(*split_domain_port(name), name) for name in env.list("PORTAL_ALLOWED_HOSTS", default=[])]
ALLOWED_HOSTS = [_origin.hostname, "localhost", "127.0.0.1", *(host or name for host, _, name in _listed)]
HOST_PORTS = {str(_origin.port or (443 if SECURE else 80)), *(port for _, port, _ in _listed if port)}
CSRF_TRUSTED_ORIGINS = [PORTAL_ORIGIN, f"http://localhost{_port}", f"http://127.0.0.1{_port}"]
USE_X_FORWARDED_HOST = False
# The gateway sends this with each request; empty disables the check. By default, the client address in X-Forwarded-For is only
# trusted if the check is enabled (ALLAUTH_TRUSTED_PROXY_COUNT).
GATEWAY_SECRET = env.str("PORTAL_GATEWAY_SECRET", default="")
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = SECURE
SECURE_HSTS_SECONDS = 31536000 if SECURE else 0
SECURE_REFERRER_POLICY = "same-origin"
X_FRAME_OPTIONS = "DENY"
CSRF_FAILURE_VIEW = "portal.pages.error_pages.form_too_old"
# Pages load nothing from other servers and contain no inline scripts. Style attributes are allowed for the widths of bars.
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": ["'self'"],
        "script-src": ["'self'"],
        "style-src": ["'self'"],
        "style-src-attr": ["'unsafe-inline'"],
        "img-src": ["'self'", "data:"],
        "media-src": ["'self'", "data:"],
        "connect-src": ["'self'"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        # The identity provider's button submits a form whose answer redirects there.
        "form-action": ["'self'", *filter(None, [env.str("OIDC_SERVER_URL", default="")])],
        "frame-ancestors": ["'none'"],
    }
}
# __Host- cookies cannot be set by pages of other hosts in the domain, and applications are such hosts.
BROWSER_COOKIE_NAME = "browser"  # which one has signed in before (portal/pages/accounts.py)
if SECURE:
    SESSION_COOKIE_NAME, CSRF_COOKIE_NAME = "__Host-sessionid", "__Host-csrftoken"
    BROWSER_COOKIE_NAME = "__Host-browser"
# Host-only cookies: users' content is served from other origins (<name>.apps.<domain>) and never receives them.
SESSION_COOKIE_HTTPONLY = True
SESSION_COOKIE_SAMESITE = CSRF_COOKIE_SAMESITE = "Lax"
SESSION_ENGINE = "django.contrib.sessions.backends.cached_db"

INSTALLED_APPS = [
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.sessions",
    "django.contrib.messages",
    "django.contrib.postgres",
    "django.contrib.staticfiles",
    "django.forms",
    "csp",
    "allauth",
    "allauth.account",
    "allauth.socialaccount",
    "allauth.socialaccount.providers.openid_connect",
    "rest_framework",
    "knox",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "portal",
    "billing",
    "datastores",
    "clusters",
]
MIDDLEWARE = [
    "portal.monitoring.health.HealthMiddleware",
    "portal.monitoring.metrics.MetricsMiddleware",
    "portal.pages.layout.RequestIdMiddleware",
    "portal.web.headers.HeadersMiddleware",
    "portal.web.headers.CompressionMiddleware",
    "clusters.gateway.middleware.ApplicationsMiddleware",
    "portal.web.gateway.GatewayMiddleware",
    "portal.web.limits.RequestLimits",
    "django.middleware.security.SecurityMiddleware",
    "csp.middleware.CSPMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "portal.installation.rotation.SessionsMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "portal.pages.accounts.SignInMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "allauth.account.middleware.AccountMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]
ROOT_URLCONF = "portal.urls"
WSGI_APPLICATION = "portal.wsgi.application"
TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [BASE_DIR / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "portal.pages.layout.frame",
            ],
        },
    }
]
FORM_RENDERER = "django.forms.renderers.TemplatesSetting"

_database = env.db_url("DATABASE_URL")
# Detects the loss of the database server's machine within 30 s.
_KEEPALIVES = {"keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 4, "tcp_user_timeout": 30_000}
DATABASES = {
    "default": {
        **_database,
        "OPTIONS": {**_KEEPALIVES, **_database.get("OPTIONS", {})},
        "CONN_MAX_AGE": 600,
        "CONN_HEALTH_CHECKS": True,
        "ATOMIC_REQUESTS": False,
    }
}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = env.str("REDIS_URL")
CACHES = {
    "default": {
        "BACKEND": "portal.db.cache.Forgiving",
        "LOCATION": REDIS_URL,
        "OPTIONS": {"socket_timeout": 1, "socket_connect_timeout": 1, "serializer": "portal.db.cache.Json"},
    }
}

# Celery messages are only wake-ups. Results are rows in PostgreSQL, so there is no result backend.
CELERY_BROKER_URL = REDIS_URL
if REDIS_URL.startswith("unix://"):
    # redis-py and Celery spell the URL of a Unix socket differently.
    CELERY_BROKER_URL = "redis+socket" + REDIS_URL.removeprefix("unix").replace("?db=", "?virtual_host=")
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_ACKS_LATE = True
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
# Requests must not wait for a broker that is down: the first failure is final (kombu would retry for 6 s).
CELERY_BROKER_TRANSPORT_OPTIONS = {
    "visibility_timeout": 120,
    "socket_timeout": 5,
    "socket_connect_timeout": 2,
    "max_retries": 0,
    "interval_start": 0,
    # Seconds that an idle worker waits per poll of Redis (kombu's default is 1). A message ends the wait at once, but a
    # worker can stop only between two polls.
    "polling_interval": 4,
}
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_BEAT_SCHEDULE = {
    # A lost wake-up (Redis restarted, a worker died) delays work by at most this long, and that of a new run by twice as long.
    "sweep": {"task": "clusters.tasks.sweep", "schedule": 5.0, "options": {"expires": 5}},
    # Posts ended usage and past months to the ledger.
    "post": {"task": "billing.tasks.post", "schedule": 15.0, "options": {"expires": 15}},
    "waste": {"task": "billing.tasks.find_waste", "schedule": 60.0, "options": {"expires": 60}},
    "measure": {"task": "clusters.tasks.measure", "schedule": 60.0, "options": {"expires": 60}},
    # When runs that wait will probably start.
    "forecast": {"task": "clusters.tasks.forecast", "schedule": 60.0, "options": {"expires": 60}},
    # Notes when running runs last saved.
    "checkpoints": {"task": "clusters.tasks.note_checkpoints", "schedule": 60.0, "options": {"expires": 60}},
    # Turns a past month into invoices after its grace period.
    "close": {"task": "billing.tasks.close_months", "schedule": 60.0, "options": {"expires": 60}},
    # Sends pending webhooks; a commit also triggers it.
    "webhooks": {"task": "portal.tasks.send_webhooks", "schedule": 5.0, "options": {"expires": 5}},
    "forget-visits": {"task": "clusters.tasks.forget_visits", "schedule": 3600.0, "options": {"expires": 3600}},
    "uploads": {"task": "datastores.tasks.give_up_uploads", "schedule": 3600.0, "options": {"expires": 3600}},
    "leftovers": {"task": "datastores.tasks.drop_leftovers", "schedule": 3600.0, "options": {"expires": 3600}},
    # Measures the content of buckets once a minute.
    "buckets": {"task": "clusters.tasks.meter_buckets", "schedule": 60.0, "options": {"expires": 60}},
    "limits": {"task": "datastores.tasks.watch_limits", "schedule": 60.0, "options": {"expires": 60}},
    # Finishes moves into and out of the trash, and deletes files for good after seven days.
    "trash": {"task": "datastores.tasks.sweep_trash", "schedule": 15.0, "options": {"expires": 15}},
    # Applies rules of datastores that are new or a day old.
    "rules": {"task": "datastores.tasks.apply_rules", "schedule": 60.0, "options": {"expires": 60}},
    # The same for rules of models.
    "model-rules": {"task": "clusters.tasks.apply_model_rules", "schedule": 60.0, "options": {"expires": 60}},
    "forget": {"task": "portal.tasks.forget_deliveries", "schedule": 3600.0, "options": {"expires": 3600}},
    "forget-measured": {"task": "billing.tasks.forget_measured", "schedule": 3600.0, "options": {"expires": 3600}},
    # Thins what tasks did with their machines, and forgets what is too old.
    "machine": {"task": "clusters.tasks.thin_machine_samples", "schedule": 3600.0, "options": {"expires": 3600}},
    # Adds the ledger's new lines to what appcodes used lately.
    "fold-use": {"task": "billing.tasks.fold_use", "schedule": 3600.0, "options": {"expires": 3600}},
    # Notices of expiring appcodes; they count in days, so a delay of minutes is fine.
    "expiry": {"task": "portal.tasks.tell_expiry", "schedule": 600.0, "options": {"expires": 600}},
    # Notices of expiring credentials of clouds.
    "credentials": {"task": "clusters.tasks.tell_credentials_end", "schedule": 3600.0, "options": {"expires": 3600}},
    "mail": {"task": "billing.tasks.send_mail", "schedule": 60.0, "options": {"expires": 60}},
    # Evaluates budgets once a minute. Runs that a budget has ordered to stop are looked for more often.
    "budgets": {"task": "billing.tasks.watch_budgets", "schedule": 60.0, "options": {"expires": 60}},
    "stop": {"task": "clusters.tasks.stop_over_budget", "schedule": 15.0, "options": {"expires": 15}},
}

AUTH_USER_MODEL = "portal.User"
AUTHENTICATION_BACKENDS = ["allauth.account.auth_backends.AuthenticationBackend"]
LOGIN_URL = "account_login"
LOGIN_REDIRECT_URL = "/"
PASSWORD_HASHERS = [
    "django.contrib.auth.hashers.ScryptPasswordHasher",
    "django.contrib.auth.hashers.PBKDF2PasswordHasher",
]
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": f"django.contrib.auth.password_validation.{name}"}
    for name in (
        "UserAttributeSimilarityValidator",
        "MinimumLengthValidator",
        "CommonPasswordValidator",
        "NumericPasswordValidator",
    )
]
ACCOUNT_ADAPTER = "portal.pages.accounts.AccountAdapter"
ACCOUNT_FORMS = {
    "login": "portal.pages.accounts.SignInForm",
    "change_password": "portal.pages.accounts.NewPasswordForm",
    "reset_password_from_key": "portal.pages.accounts.ForgottenPasswordForm",
}
ACCOUNT_LOGIN_METHODS = {"username", "email"}
ACCOUNT_SIGNUP_FIELDS = ["email*", "username*", "password1*", "password2*"]
ACCOUNT_EMAIL_VERIFICATION = "none"
ACCOUNT_EMAIL_SUBJECT_PREFIX = ""
ACCOUNT_EMAIL_UNKNOWN_ACCOUNTS = False
ACCOUNT_LOGOUT_REDIRECT_URL = "/"
ACCOUNT_SESSION_REMEMBER = True
# Number of proxies in front of us that add to X-Forwarded-For; the gateway is one.
ALLAUTH_TRUSTED_PROXY_COUNT = env.int("PORTAL_PROXY_COUNT", default=1 if GATEWAY_SECRET else 0)
# Whether anyone may sign up. Otherwise only an administrator or the identity provider creates accounts.
PORTAL_OPEN_SIGNUP = env.bool("PORTAL_OPEN_SIGNUP", default=False)
SOCIALACCOUNT_ADAPTER = "portal.pages.accounts.ProviderAdapter"
SOCIALACCOUNT_ONLY = False
SOCIALACCOUNT_AUTO_SIGNUP = True
SOCIALACCOUNT_PROVIDERS = (
    {
        "openid_connect": {
            "APPS": [
                {
                    "provider_id": "oidc",
                    "name": env.str("OIDC_NAME", default="Single sign-on"),
                    "client_id": env.str("OIDC_CLIENT_ID"),
                    "secret": env.str("OIDC_CLIENT_SECRET"),
                    "settings": {"server_url": env.str("OIDC_SERVER_URL")},
                }
            ]
        }
    }
    if env.str("OIDC_SERVER_URL", default="")
    else {}
)
EMAIL_CONFIG = env.email_url("EMAIL_URL", default="consolemail://")
vars().update(EMAIL_CONFIG)
EMAIL_TIMEOUT = 20
DEFAULT_FROM_EMAIL = env.str("PORTAL_MAIL_FROM", default=f"GPU cloud <noreply@{_origin.hostname}>")

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "portal.api.tokens.BearerAuthentication",
        "portal.api.sessions.BrowserAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": [
        "rest_framework.permissions.IsAuthenticated",
        "portal.api.parameters.KnownParameters",
    ],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["portal.web.limits.JsonBody"],
    "DEFAULT_THROTTLE_CLASSES": ["portal.web.limits.PerPerson"],
    "EXCEPTION_HANDLER": "portal.api.problems.problem_details",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
KNOX_TOKEN_MODEL = "portal.ApiToken"  # noqa: S105  a model, no secret
# ApiToken replaces knox's own table, which its migrations would still create and nothing would ever empty.
MIGRATION_MODULES = {"knox": None}
REST_KNOX = {
    "AUTH_HEADER_PREFIX": "Bearer",
    "TOKEN_PREFIX": "gpc_",
    "TOKEN_TTL": None,
    "TOKEN_MODEL": KNOX_TOKEN_MODEL,
}
SPECTACULAR_SETTINGS = {
    "TITLE": "GPU cloud portal",
    "VERSION": "v1",
    "OAS_VERSION": "3.1.0",
    "DESCRIPTION": "[The portal](/) as manifests: what was asked for is the `spec`, what was seen is the `status`. Send "
    "`Authorization: Bearer TOKEN` with a token from [your profile page](/profile), or be signed in. Errors are problem "
    "details (RFC 9457): 400 is a body that cannot be read, 422 names the fields to mend, 409 has to wait for another state.",
    "SWAGGER_UI_SETTINGS": {"deepLinking": True, "defaultModelsExpandDepth": 0, "displayRequestDuration": True},
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    "REDOC_DIST": "SIDECAR",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",
    "COMPONENT_SPLIT_REQUEST": True,
    "POSTPROCESSING_HOOKS": ["portal.api.openapi.finish"],
}

LANGUAGE_CODE = "en"
USE_I18N = True
USE_TZ = True
TIME_ZONE = "UTC"

STATIC_URL = "/static/"
# No other origin uses static files (portal/web/headers.py).
WHITENOISE_ALLOW_ALL_ORIGINS = False
STATIC_ROOT = Path(env.str("PORTAL_STATIC", default=str(DATA_DIR / "static")))
STATICFILES_DIRS = [BASE_DIR / "static", *filter(Path.is_dir, [assets.FOLDER])]
STORAGES = {
    "default": {"BACKEND": "django.core.files.storage.InMemoryStorage"},
    "staticfiles": {
        "BACKEND": "django.contrib.staticfiles.storage.StaticFilesStorage"
        if DEBUG
        else "whitenoise.storage.CompressedManifestStaticFilesStorage"
    },
}
# Large enough for manifests and forms; data goes to datastores.
DATA_UPLOAD_MAX_MEMORY_SIZE = 1024 * 1024

# Concurrent log, command and export streams per web process; each occupies a thread (portal/web/limits.py).
MAX_LOG_STREAMS = env.int("PORTAL_MAX_LOG_STREAMS", default=10)

# Maximum size of a file uploaded through the portal; larger ones need an S3 client.
UPLOAD_MAX_BYTES = env.int("PORTAL_UPLOAD_MAX_MB", default=50 * 1024) * 2**20
# Maximum size of an export (FOCUS), built in a temporary file. A web process builds at most MAX_LOG_STREAMS at a time.
EXPORT_MAX_BYTES = env.int("PORTAL_EXPORT_MAX_MB", default=1024) * 2**20
# Package index for plugins; a private one may contain name and password, "off" disables it.
PACKAGE_INDEX = env.str("PORTAL_PACKAGE_INDEX", default="https://pypi.org/simple/")
# NFS exports that datastores may name (datastores/exports.py). None by default: NFS servers trust clients.
NFS_SERVERS = env.list("PORTAL_NFS_SERVERS", default=[])
# Whether webhooks may use http without TLS, and a file of additional certificate authorities to trust.
WEBHOOK_HTTP = env.bool("PORTAL_WEBHOOK_HTTP", default=False)
WEBHOOK_AUTHORITIES = env.str("PORTAL_WEBHOOK_CA_FILE", default="")
WEBHOOKS_PER_APPCODE = env.int("PORTAL_WEBHOOKS_PER_APPCODE", default=10)
# Default lifetime of a new appcode in days; 0: unlimited.
APPCODE_DAYS = env.int("PORTAL_APPCODE_DAYS", default=365)
if not 0 <= APPCODE_DAYS <= MAX_DAYS:
    raise ImproperlyConfigured(f"PORTAL_APPCODE_DAYS is a number from 0 to {MAX_DAYS}, not {APPCODE_DAYS}.")
# Limits against runaway programs, and against users who flood the lists of others. A cluster has one run at a time.
REQUESTS_PER_PERSON = env.int("PORTAL_REQUESTS_PER_PERSON", default=10)
DATASTORES_PER_APPCODE = env.int("PORTAL_DATASTORES_PER_APPCODE", default=200)
ENVIRONMENTS_PER_APPCODE = env.int("PORTAL_ENVIRONMENTS_PER_APPCODE", default=200)
CLUSTERS_PER_APPCODE = env.int("PORTAL_CLUSTERS_PER_APPCODE", default=5000)
# How long deliveries of webhooks are kept.
WEBHOOK_MEMORY = timedelta(days=env.int("PORTAL_WEBHOOK_DAYS", default=30))
# How long hourly GPU utilisation per task, and what it did with its machine, is kept; daily sums stay.
MEASURED_MEMORY = timedelta(days=env.int("PORTAL_MEASURED_DAYS", default=396))
SINGLE_MACHINE = env.bool("PORTAL_SINGLE_MACHINE", default="KUBERNETES_SERVICE_HOST" not in env.ENVIRON)

# HTTP endpoints of tasks are served at <label>.<domain>: each has its own origin, never the portal's. On a single machine the
# gateway reads its routes from GATEWAY_FOLDER.
APPS_ORIGIN = env.str(
    "PORTAL_APPS_ORIGIN",
    default=f"{_origin.scheme}://apps.{(_origin.hostname or '').partition('.')[2] or 'localhost'}{_port}",
)
_apps = urlsplit(APPS_ORIGIN)
APPS_SCHEME, APPS_DOMAIN = _apps.scheme, _apps.hostname or ""
APPS_USUAL_PORT = "443" if _apps.scheme == "https" else "80"
APPS_PORT = str(_apps.port or APPS_USUAL_PORT)
# Services answer at <label>.<domain>. The routers (clusters/router/) take these requests, not the portal.
SERVE_ORIGIN = env.str(
    "PORTAL_SERVE_ORIGIN",
    default=f"{_origin.scheme}://serve.{(_origin.hostname or '').partition('.')[2] or 'localhost'}{_port}",
)
_serve = urlsplit(SERVE_ORIGIN)
SERVE_SCHEME, SERVE_DOMAIN = _serve.scheme, _serve.hostname or ""
SERVE_USUAL_PORT = "443" if _serve.scheme == "https" else "80"
SERVE_PORT = str(_serve.port or SERVE_USUAL_PORT)
GATEWAY_FOLDER = env.str("PORTAL_GATEWAY_FOLDER", default="")
GATEWAY_PORT = env.int("PORTAL_GATEWAY_PORT", default=8000)
# Seconds between two activity polls of endpoints on other clouds.
ACTIVITY_SECONDS = env.float("PORTAL_ACTIVITY_SECONDS", default=60.0)

# Socket of the node agent, which is the cloud "local"; "" if no tasks run on this machine. Administrators register Kubernetes
# clusters.
LOCAL_CLOUD_SOCKET = env.str(
    "LOCAL_CLOUD_SOCKET", default=str(DATA_DIR / "cloud" / "agent.sock") if SINGLE_MACHINE else ""
)
# The portal's own object storage: a bucket and keys per appcode, on an S3 server that answers IAM requests at the same URL. The
# portal uses `inner_url` and identifies itself with `proof`. A connection to the socket `start` starts the server.
STORAGE = {
    "url": env.str("PORTAL_STORAGE_URL", default=""),
    "inner_url": env.str("PORTAL_STORAGE_INNER_URL", default="") or env.str("PORTAL_STORAGE_URL", default=""),
    "region": env.str("PORTAL_STORAGE_REGION", default="us-east-1"),
    "bucket_prefix": env.str("PORTAL_STORAGE_BUCKET_PREFIX", default=""),
    "access_key": env.str("PORTAL_STORAGE_ACCESS_KEY", default=""),
    "secret": env.str("PORTAL_STORAGE_SECRET_KEY", default=""),
    "proof": env.str("PORTAL_STORAGE_PROOF", default=""),
    "start": env.str("PORTAL_STORAGE_START", default=""),
}
# Default limit of a bucket in GiB; an administrator may change it per bucket.
STORAGE_LIMIT_GIB = env.int("PORTAL_STORAGE_LIMIT_GIB", default=100)
# Archive for logs of ended tasks on clouds that delete logs with the pods; without a server, logs last as long as the pods.
LOGS_S3 = {
    "server": env.str("PORTAL_LOGS_S3_URL", default=""),
    "bucket": env.str("PORTAL_LOGS_S3_BUCKET", default="gpu-cloud-logs"),
    "prefix": env.str("PORTAL_LOGS_S3_PREFIX", default="").strip("/"),
    "region": env.str("PORTAL_LOGS_S3_REGION", default="us-east-1"),
    "access_key": env.str("PORTAL_LOGS_S3_ACCESS_KEY", default=""),
    "secret": env.str("PORTAL_LOGS_S3_SECRET_KEY", default=""),
}
if LOGS_S3["server"] and not LOGS_S3["server"].startswith(("http://", "https://")):
    raise ImproperlyConfigured("PORTAL_LOGS_S3_URL starts with http:// or https://.")
# Networks and servers, besides public addresses, that datastores, repositories and webhooks may use
# (portal/network/outgoing.py). The servers that other settings name are allowed too.
try:
    OUTGOING = outgoing.Rules.read(
        [*env.list("PORTAL_OPEN_NETWORKS", default=[]), *map(outgoing.server_of, (STORAGE["url"], LOGS_S3["server"]))]
    )
except ValueError as error:
    raise ImproperlyConfigured(str(error)) from error
# Maximum size of an archived log; the rest is cut.
LOGS_MAX_BYTES = env.int("PORTAL_LOGS_MAX_MB", default=1024) * 2**20
# Maximum space in /tmp per process for logs on their way to the archive.
LOGS_SPOOL_BYTES = env.int("PORTAL_LOGS_SPOOL_MB", default=4096) * 2**20
CURRENCY = env.str("PORTAL_CURRENCY", default="USD")
# Grace period for late usage before a month's invoices are made. Later usage becomes a correction on the next ones.
INVOICE_GRACE = timedelta(hours=env.int("PORTAL_INVOICE_GRACE_HOURS", default=72))

# Token for scraping /metrics; without one, only administrators can read it.
METRICS_TOKEN = env.str("PORTAL_METRICS_TOKEN", default="")

# "line" for people on one machine; "json" on stdout for log collectors of containers.
LOG_FORMAT = env.str("PORTAL_LOG_FORMAT", default="line")
logging.captureWarnings(LOG_FORMAT == "json")
LOGGING = logs.config(LOG_FORMAT, env.str("PORTAL_LOG_LEVEL", default="INFO"))
