"""What is told of a query parameter or a field that cannot be read."""

import pytest
from django.http import QueryDict
from rest_framework.exceptions import ValidationError

from apps.core.serializers import PageQuerySerializer, ProjectQuerySerializer, StrictSerializer, read_fields

PAGED, WHOLE = PageQuerySerializer, ProjectQuerySerializer


@pytest.mark.parametrize(
    ("shape", "query", "field", "words"),
    [
        (PAGED, "limit=", "limit", "must be a whole number; leave it out for the usual one"),
        (PAGED, "limit=many", "limit", "must be a whole number; leave it out for the usual one"),
        (PAGED, "limt=5", "limt", "unknown parameter; there are before, limit, project"),
        (WHOLE, "limit=", "limit", "unknown parameter, since what is here is not paged; there are project"),
        (WHOLE, "before=x", "before", "unknown parameter, since what is here is not paged; there are project"),
        (WHOLE, "colour=red", "colour", "unknown parameter; there are project"),
    ],
)
def test_a_parameter_that_cannot_be_read_is_told_in_words(
    shape: type[StrictSerializer], query: str, field: str, words: str
) -> None:
    with pytest.raises(ValidationError) as caught:
        read_fields(shape, QueryDict(query))
    assert caught.value.detail == {field: [words]}


def test_of_a_body_it_is_a_field() -> None:
    with pytest.raises(ValidationError) as caught:
        read_fields(WHOLE, {"limit": 5})
    assert caught.value.detail == {"limit": ["unknown field; there are project"]}
