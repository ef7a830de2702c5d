"""API keys for DRF. `request.user` is a `Caller` holder; `caller_of` returns the caller whichever way it came in."""

from typing import Any

from django.utils import timezone
from drf_spectacular.extensions import OpenApiAuthenticationExtension
from rest_framework.authentication import BaseAuthentication
from rest_framework.exceptions import AuthenticationFailed
from rest_framework.request import Request

from apps.accounts.access import Caller
from apps.accounts.models import ApiKey, User, hash_key
from apps.accounts.services import USE_IS_WRITTEN_EVERY, mark_keys_used


class KeyUser:
    """What DRF sees as the user when a key speaks."""

    is_authenticated = True
    is_anonymous = False
    pk = None

    def __init__(self, key: ApiKey) -> None:
        self.key = key


class KeyAuthentication(BaseAuthentication):
    """`Authorization: Bearer claw-…` or `x-api-key: claw-…`."""

    def authenticate(self, request: Request) -> tuple[KeyUser, None] | None:
        secret = read_secret(request.headers.get("Authorization", ""), request.headers.get("X-Api-Key", ""))
        if not secret:
            return None
        key = ApiKey.objects.usable().select_related("agent__project__team").filter(sha256=hash_key(secret)).first()
        if key is None:
            raise AuthenticationFailed("this API key is unknown, expired or switched off")
        if key.last_used_at is None or timezone.now() - key.last_used_at > USE_IS_WRITTEN_EVERY:
            mark_keys_used({key.pk: timezone.now()})
        return KeyUser(key), None

    def authenticate_header(self, _request: Request) -> str:
        return "Bearer"


def read_secret(authorization: str, x_api_key: str) -> str:
    """Return the key's secret from the two headers that clients use, "" when neither holds one."""
    scheme, _, token = authorization.partition(" ")
    if scheme.lower() == "bearer" and token.strip():
        return token.strip()
    return x_api_key.strip()


def caller_of(request: Request) -> Caller:
    """Return who sent this (authenticated) request."""
    user: Any = request.user
    if isinstance(user, KeyUser):
        return Caller(key=user.key)
    assert isinstance(user, User)  # noqa: S101 (IsAuthenticated stands before)
    return Caller(user=user)


class KeyAuthenticationScheme(OpenApiAuthenticationExtension):  # type: ignore[no-untyped-call]
    """Describes the key in the OpenAPI schema."""

    target_class = KeyAuthentication
    name = "key"

    def get_security_definition(self, _auto_schema: Any) -> dict[str, str]:
        return {"type": "http", "scheme": "bearer"}
