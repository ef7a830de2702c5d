"""Django's settings. Every value that a person may change comes from `clawplatform.env`."""

from pathlib import Path

import django_stubs_ext
import structlog
from csp.constants import SELF

from apps.core.contracts.tasks import (
    CLOSE_IDLE_TRAJECTORIES,
    KEEP_MONTHS,
    QUEUE_CPU,
    RECONCILE_ENGINES,
    REMOVE_VERSION_FILES,
    RESCUE_RUNS,
    ROUTES,
    TEND_BULK_JOBS,
    TEND_GRADERS,
    TEND_QUEUES,
    TEND_TRANSFERS,
)
from clawplatform.databases import broker_url, read_database, read_redis_url
from clawplatform.env import ROOT, make_folder, read_env, read_secret_key

django_stubs_ext.monkeypatch()

ENV = read_env()

SECRET_KEY = read_secret_key(ENV)
DEBUG = ENV.debug
ALLOWED_HOSTS = ENV.hosts
CSRF_TRUSTED_ORIGINS = [ENV.public_base_url]

INSTALLED_APPS = [
    "clawplatform",
    "apps.core",
    "apps.accounts",
    "apps.registry",
    "apps.trajectories",
    "apps.feedback",
    "apps.training",
    "apps.console",
    "channels",
    "rest_framework",
    "drf_spectacular",
    "drf_spectacular_sidecar",
    "django_htmx",
    "csp",
    "django.contrib.admin",
    "django.contrib.auth",
    "django.contrib.contenttypes",
    "django.contrib.humanize",
    "django.contrib.messages",
    "django.contrib.sessions",
    "django.contrib.staticfiles",
]

MIDDLEWARE = [
    "apps.core.loops.LoopMiddleware",
    "django.middleware.security.SecurityMiddleware",
    "whitenoise.middleware.WhiteNoiseMiddleware",
    "csp.middleware.CSPMiddleware",
    "apps.console.middleware.RequestIdMiddleware",
    "apps.console.middleware.AddressMiddleware",
    "apps.console.middleware.DatabaseAwayMiddleware",
    "django.contrib.sessions.middleware.SessionMiddleware",
    "django.middleware.common.CommonMiddleware",
    "django.middleware.csrf.CsrfViewMiddleware",
    "django.contrib.auth.middleware.AuthenticationMiddleware",
    "django.contrib.messages.middleware.MessageMiddleware",
    "django.middleware.clickjacking.XFrameOptionsMiddleware",
    "django_htmx.middleware.HtmxMiddleware",
]

ROOT_URLCONF = "clawplatform.urls"
ASGI_APPLICATION = "clawplatform.asgi.application"
APPEND_SLASH = False

TEMPLATES = [
    {
        "BACKEND": "django.template.backends.django.DjangoTemplates",
        "DIRS": [ROOT / "templates"],
        "APP_DIRS": True,
        "OPTIONS": {
            "context_processors": [
                "django.template.context_processors.request",
                "django.contrib.auth.context_processors.auth",
                "django.contrib.messages.context_processors.messages",
                "apps.console.context.console",
            ],
        },
    },
]

DATABASES = {"default": read_database(ENV)}
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"

REDIS_URL = read_redis_url(ENV)
CHANNEL_HOST = {"address": REDIS_URL, "socket_timeout": 30}  # longer than the 5 s for which the layer waits for news
CHANNEL_LAYERS = {"default": {"BACKEND": "channels_redis.core.RedisChannelLayer", "CONFIG": {"hosts": [CHANNEL_HOST]}}}

# In each process's memory. What it holds most of is the text of tokens, of which the default of 300 is not one answer.
CACHES = {"default": {"BACKEND": "django.core.cache.backends.locmem.LocMemCache", "OPTIONS": {"MAX_ENTRIES": 200_000}}}

CELERY_BROKER_URL = broker_url(REDIS_URL)
CELERY_TASK_IGNORE_RESULT = True
CELERY_TASK_DEFAULT_QUEUE = QUEUE_CPU
CELERY_TASK_ROUTES = {name: {"queue": queue} for name, queue in ROUTES.items()}
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_WORKER_PREFETCH_MULTIPLIER = 1
CELERY_WORKER_HIJACK_ROOT_LOGGER = False
CELERY_BEAT_SCHEDULE_FILENAME = str(ENV.data_dir / "celerybeat-schedule")
CELERY_BEAT_SCHEDULE = {
    "reconcile-engines": {"task": RECONCILE_ENGINES, "schedule": 5.0, "options": {"expires": 5}},
    "close-idle-trajectories": {"task": CLOSE_IDLE_TRAJECTORIES, "schedule": 30.0, "options": {"expires": 30}},
    "rescue-runs": {"task": RESCUE_RUNS, "schedule": 15.0, "options": {"expires": 15}},
    "tend-bulk-jobs": {"task": TEND_BULK_JOBS, "schedule": 60.0, "options": {"expires": 60}},
    "tend-graders": {"task": TEND_GRADERS, "schedule": 10.0, "options": {"expires": 10}},
    "tend-transfers": {"task": TEND_TRANSFERS, "schedule": 30.0, "options": {"expires": 30}},
    "tend-queues": {"task": TEND_QUEUES, "schedule": 60.0, "options": {"expires": 60}},
    "remove-version-files": {"task": REMOVE_VERSION_FILES, "schedule": 60.0, "options": {"expires": 60}},
    "keep-months": {"task": KEEP_MONTHS, "schedule": 3600.0, "options": {"expires": 3600}},
}

AUTH_USER_MODEL = "accounts.User"
LOGIN_URL = "login"
LOGIN_REDIRECT_URL = "home"
LOGOUT_REDIRECT_URL = "login"
AUTH_PASSWORD_VALIDATORS = [
    {"NAME": "django.contrib.auth.password_validation.MinimumLengthValidator", "OPTIONS": {"min_length": 10}},
    {"NAME": "django.contrib.auth.password_validation.CommonPasswordValidator"},
]
SESSION_COOKIE_SAMESITE = "Lax"
SESSION_COOKIE_SECURE = CSRF_COOKIE_SECURE = ENV.public_base_url.startswith("https://")
SECURE_CONTENT_TYPE_NOSNIFF = True
X_FRAME_OPTIONS = "DENY"
CSRF_FAILURE_VIEW = "apps.console.views.errors.csrf_failed"
CONTENT_SECURITY_POLICY = {
    "DIRECTIVES": {
        "default-src": [SELF],
        "img-src": [SELF, "data:"],
        "object-src": ["'none'"],
        "base-uri": ["'none'"],
        "frame-ancestors": ["'none'"],
        "form-action": [SELF],
    },
}

LANGUAGE_CODE = "en"
TIME_ZONE = "UTC"
USE_TZ = True

STATIC_URL = "/static/"
STATIC_ROOT = make_folder(ENV, "static")  # WhiteNoise wants it to exist
STATICFILES_DIRS: list[Path | tuple[str, Path]] = [ROOT / "static"]
NODE_MODULES = ROOT / "node_modules"
BROWSER_PACKAGES = {
    "uplot": NODE_MODULES / "uplot" / "dist",
    "geist": NODE_MODULES / "@fontsource-variable" / "geist" / "files",
    "geist-mono": NODE_MODULES / "@fontsource-variable" / "geist-mono" / "files",
}
STATICFILES_DIRS += [(prefix, folder) for prefix, folder in BROWSER_PACKAGES.items() if folder.is_dir()]
HAS_UPLOT = BROWSER_PACKAGES["uplot"].is_dir()
HAS_FONTS = BROWSER_PACKAGES["geist"].is_dir() and BROWSER_PACKAGES["geist-mono"].is_dir()
WHITENOISE_USE_FINDERS = True

REST_FRAMEWORK = {
    "DEFAULT_AUTHENTICATION_CLASSES": [
        "apps.accounts.api.authentication.KeyAuthentication",
        "rest_framework.authentication.SessionAuthentication",
    ],
    "DEFAULT_PERMISSION_CLASSES": ["rest_framework.permissions.IsAuthenticated"],
    "DEFAULT_RENDERER_CLASSES": ["rest_framework.renderers.JSONRenderer"],
    "DEFAULT_PARSER_CLASSES": ["apps.core.parsers.BodyParser"],
    "DEFAULT_SCHEMA_CLASS": "drf_spectacular.openapi.AutoSchema",
    "EXCEPTION_HANDLER": "apps.core.problems.handle_exception",
    "TEST_REQUEST_DEFAULT_FORMAT": "json",
}
API_INTRODUCTION = """
All that the console does, for scripts. Send an agent's key as `Authorization: Bearer claw-…`; which addresses a key
may use is told by its scope (*Agents* in the console, where keys are made). Model calls are not here: they speak the
providers' own dialects under `/v1`.

Errors are problem JSON (RFC 9457): `detail` says what was wrong, `field` where.

[Back to the console](/)
"""
SPECTACULAR_SETTINGS = {
    "TITLE": "Claw Platform",
    "DESCRIPTION": API_INTRODUCTION,
    "VERSION": "1",
    "SERVE_INCLUDE_SCHEMA": False,
    "SCHEMA_PATH_PREFIX": "/api/v1",  # what follows it groups the operations
    "SWAGGER_UI_DIST": "SIDECAR",
    "SWAGGER_UI_FAVICON_HREF": "SIDECAR",
    # Folded: all open, the page is still drawing its operations after 20 s. No links to operations: Swagger UI puts
    # them into its buttons, where a screen reader loses them.
    "SWAGGER_UI_SETTINGS": {"deepLinking": False, "docExpansion": "none", "defaultModelsExpandDepth": -1},
    "REDOC_DIST": "SIDECAR",
    "ENUM_NAME_OVERRIDES": {
        "BatchState": "apps.training.models.BatchState",
        "ItemState": "apps.feedback.queues.models.ItemState",
        "QueueState": "apps.feedback.queues.models.QueueState",
        "ReviewMode": "apps.feedback.queues.models.Mode",
        "ReviewState": "apps.feedback.queues.models.ReviewState",
        "EngineState": "apps.registry.models.EngineState",
        "JobState": "apps.trajectories.datasets.models.JobState",
        "RunState": "apps.training.models.RunState",
        "TrajectoryState": "apps.trajectories.models.TrajectoryState",
        "WorkState": "apps.feedback.graders.models.WorkState",
        "VersionState": "apps.registry.models.VersionState",
    },
}

CLAW = ENV
LOGGING = {
    "version": 1,
    "disable_existing_loggers": False,
    "formatters": {
        "lines": {
            "()": structlog.stdlib.ProcessorFormatter,
            "processor": structlog.processors.LogfmtRenderer(key_order=["timestamp", "level", "event"]),
            "foreign_pre_chain": [structlog.stdlib.add_log_level, structlog.processors.TimeStamper(fmt="iso")],
        },
    },
    "handlers": {"console": {"class": "logging.StreamHandler", "formatter": "lines"}},
    "root": {"handlers": ["console"], "level": "INFO"},
    "loggers": {"django.db.backends": {"level": "WARNING"}},
}
structlog.configure(
    processors=[
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.filter_by_level,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso"),
        structlog.processors.format_exc_info,
        structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
    ],
    logger_factory=structlog.stdlib.LoggerFactory(),
    cache_logger_on_first_use=True,
)
