"""A run's recipe and selection as fields of the REST API, described by the models that check them."""

from collections.abc import Mapping
from typing import Any

from drf_spectacular.utils import extend_schema_field
from pydantic import BaseModel
from rest_framework import serializers

from apps.training.recipes import RecipeConfig
from apps.training.selection import Selection


def describe_model(model: type[BaseModel]) -> dict[str, Any]:
    """Return the model's JSON schema in the words of OpenAPI 3.0, which knows no `$defs`, `const` or type `null`."""
    whole = model.model_json_schema()
    return _restate(whole, defs=whole.pop("$defs", {}))


def _restate(schema: Mapping[str, Any], *, defs: Mapping[str, Any]) -> dict[str, Any]:
    said = {name: value for name, value in schema.items() if name != "title"}
    if "$ref" in said:
        said = {**_restate(defs[said.pop("$ref").rpartition("/")[2]], defs=defs), **said}
    if "const" in said:
        said["enum"] = [said.pop("const")]
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if bound in said:
            said[limit], said[bound] = said[bound], True
    kinds = [_restate(kind, defs=defs) for kind in said.pop("anyOf", [])]
    others = [kind for kind in kinds if kind.get("type") != "null"]
    if len(others) < len(kinds):
        said["nullable"] = True
    said |= others[0] if len(others) == 1 else {"anyOf": others} if others else {}
    if "properties" in said:
        said["properties"] = {name: _restate(inner, defs=defs) for name, inner in said["properties"].items()}
    return said


@extend_schema_field(describe_model(RecipeConfig))
class RecipeField(serializers.DictField):
    """Settings of a run; `read_recipe` checks them."""


@extend_schema_field(describe_model(Selection))
class SelectionField(serializers.DictField):
    """Filters of a run; `read_selection` checks them."""
