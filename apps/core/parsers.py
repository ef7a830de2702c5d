"""Reads the JSON bodies of the REST API, and refuses by name what could be neither stored nor shown again."""

from collections.abc import Mapping
from typing import IO, Any

from rest_framework.exceptions import ParseError, ValidationError
from rest_framework.parsers import JSONParser
from rest_framework.settings import api_settings

from apps.core.texts import NUL_OR_HALF, TOO_DEEP, find_fault, is_storable


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
