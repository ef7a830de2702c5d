"""One ASGI process: the gateway (Starlette) takes the token path, Channels the sockets, Django everything else."""

import os
from typing import cast

os.environ.setdefault("DJANGO_SETTINGS_MODULE", "clawplatform.settings")

from django.core.asgi import get_asgi_application

django_application = get_asgi_application()  # Loads the apps; what follows may import models.

from channels.auth import AuthMiddlewareStack
from channels.routing import ProtocolTypeRouter, URLRouter
from channels.security.websocket import AllowedHostsOriginValidator
from starlette.types import ASGIApp

from apps.console.routing import websocket_urlpatterns
from apps.core.bodies import BoundedBodies
from apps.core.threads import KeptThreads
from apps.gateway.app import GatewayDoor
from clawplatform import celery as celery

sockets = AllowedHostsOriginValidator(AuthMiddlewareStack(URLRouter(websocket_urlpatterns)))
pages = BoundedBodies(KeptThreads(cast("ASGIApp", django_application)))
rest = ProtocolTypeRouter({"http": pages, "websocket": sockets})
application = GatewayDoor(cast("ASGIApp", rest))  # Channels' stubs type the scope more narrowly than ASGI does
