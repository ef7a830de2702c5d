"""Reads the JSON bodies of the REST API, and refuses by name what could be neither stored nor shown again."""

import io
from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError, ValidationError
from rest_framework.parsers import BaseParser, JSONParser
from rest_framework.settings import api_settings

from apps.core.errors import TooLarge
from apps.core.texts import NUL_OR_HALF, TOO_DEEP, find_fault, is_storable

LARGE_BODY_BYTES = 32 * 1024 * 1024


class BodyParser(JSONParser):
    """JSON whose texts Postgres takes and whose depth Python can walk."""

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        try:
            data = super().parse(stream, media_type, parser_context)
        except RecursionError as error:
            raise ParseError(f"JSON parse error - {TOO_DEEP}") from error
        for name, value in data.items() if isinstance(data, dict) else ():
            if not is_storable(name):
                raise ValidationError({api_settings.NON_FIELD_ERRORS_KEY: [f"a field's name: {NUL_OR_HALF}"]})
            if fault := find_fault(value):
                raise ValidationError({name: [fault]})
        return data


class LargeBodyParser(BaseParser):
    """The same for endpoints that take much at once: DRF holds every JSONParser to Django's limit for forms."""

    media_type = "application/json"

    def parse(
        self, stream: IO[Any], media_type: str | None = None, parser_context: Mapping[str, Any] | None = None
    ) -> Any:
        data = stream.read(LARGE_BODY_BYTES + 1)
        if len(data) > LARGE_BODY_BYTES:
            raise TooLarge(f"the body may have {LARGE_BODY_BYTES // 1024**2} MiB: send it in several calls")
        return BodyParser().parse(io.BytesIO(data), media_type, parser_context)
