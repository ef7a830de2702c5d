"""Tokens in, tokens out over HTTP."""

from starlette.types import Receive, Scope

from apps.gateway.call import ModelCall
from apps.gateway.desk import Desk
from apps.gateway.endpoint import ModelEndpoint
from apps.gateway.generate.behaviour import GenerateDialect, GenerateVoice
from apps.gateway.provider_form import refuse_tokens


class GenerateEndpoint(ModelEndpoint):
    """`POST /v1/generate` as an ASGI application."""

    async def _open(self, scope: Scope, receive: Receive, exchange_id: str) -> ModelCall:
        call = await super()._open(scope, receive, exchange_id)
        if call.version.is_text_only:
            raise refuse_tokens()
        if isinstance(call.voice, GenerateVoice):
            call.voice.version = call.version.label
        return call


def make_generate_endpoint(desk: Desk) -> GenerateEndpoint:
    """Return `POST /v1/generate` as an ASGI application."""
    return GenerateEndpoint(desk, GenerateDialect())
