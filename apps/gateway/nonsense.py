"""An engine's answer that is none: what reading it raises, and what is said of it. Knows no dialect and no HTTP."""

import struct

import orjson
import structlog

from apps.gateway.engines import EngineNonsenseError
from apps.gateway.routes import EngineRoute

log = structlog.get_logger(__name__)

NONSENSE = (LookupError, TypeError, AttributeError, ValueError, ArithmeticError, struct.error)


def note_nonsense(error: Exception, *, engine: EngineRoute) -> EngineNonsenseError:
    """Return what is to be raised instead, in words; what Python says of it is the log's."""
    log.warning("engine.nonsense", engine=engine.base_url, error=repr(error)[:500])
    return EngineNonsenseError(f"the engine's answer makes no sense: {_find_words(error)}")


def _find_words(error: Exception) -> str:
    if isinstance(error, orjson.JSONDecodeError):
        return "it is not JSON"
    if isinstance(error, KeyError) and isinstance(missing := error.args[0], str):
        return f"`{missing[:100]}` is missing"
    if type(error) is LookupError:  # our own words; what Python looks up in vain is one of its kinds
        return str(error)
    return "it does not have the form that was asked for"
