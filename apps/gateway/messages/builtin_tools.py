"""Tools of Anthropic's that the client runs itself, and whose definition its own models know by heart.

Other models have to be told. Only those whose arguments do not depend on the client's screen.
"""

from apps.gateway.dialect import Json

_TEXT = {"type": "string"}
_PATH = {"type": "string", "description": "Absolute path of a file or folder."}
_RANGE = {
    "type": "array",
    "items": {"type": "integer"},
    "description": "First and last line to `view`, from 1; -1 is the end.",
}


def _object(properties: Json, *required: str) -> Json:
    return {"type": "object", "properties": properties, "required": list(required)}


_EDITS: Json = {
    "file_text": {**_TEXT, "description": "For `create`: the file's text."},
    "old_str": {**_TEXT, "description": "For `str_replace`: the text to replace; it must occur exactly once."},
    "new_str": {**_TEXT, "description": "For `str_replace`: the text to put in its place."},
    "insert_line": {"type": "integer", "description": "For `insert`: the line after which to insert; 0 is the top."},
    "insert_text": {**_TEXT, "description": "For `insert`: the text to insert."},
    "view_range": _RANGE,
}

BASH: Json = {
    "description": "Run a command in a bash session that lasts from call to call.",
    "parameters": _object(
        {
            "command": {**_TEXT, "description": "The command to run."},
            "restart": {"type": "boolean", "description": "True to start the session anew instead."},
        }
    ),
}
TEXT_EDITOR: Json = {
    "description": "View, create and edit text files.",
    "parameters": _object(
        {"command": {**_TEXT, "enum": ["view", "create", "str_replace", "insert"]}, "path": _PATH, **_EDITS},
        "command",
        "path",
    ),
}
MEMORY: Json = {
    "description": "Keep notes in files below /memories that last from conversation to conversation. View them first.",
    "parameters": _object(
        {
            "command": {**_TEXT, "enum": ["view", "create", "str_replace", "insert", "delete", "rename"]},
            "path": _PATH,
            "old_path": {**_TEXT, "description": "For `rename`: the path now."},
            "new_path": {**_TEXT, "description": "For `rename`: the path wanted."},
            **_EDITS,
        },
        "command",
    ),
}

_BY_PREFIX = {"bash_": BASH, "text_editor_": TEXT_EDITOR, "memory_": MEMORY}


def find_definition(kind: str) -> Json | None:
    """Return description and parameters of a tool of this type (`bash_20250124`), None when it is not one of these."""
    found = (definition for prefix, definition in _BY_PREFIX.items() if kind.startswith(prefix))
    return next(found, None)
