SECRET_KEY = "only for this example"
ALLOWED_HOSTS = ["127.0.0.1"]
INSTALLED_APPS = ["webshop"]
ROOT_URLCONF = "webshop.urls"
WSGI_APPLICATION = "webshop.wsgi.application"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.sqlite3",
        "NAME": "shop.db",
        "OPTIONS": {"init_command": "PRAGMA journal_mode = WAL"},
    }
}
TIME_ZONE = "UTC"
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
