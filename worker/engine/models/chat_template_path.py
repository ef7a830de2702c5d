"""Where the house's chat template lies; importable without the ML libraries."""

from pathlib import Path

CHAT_TEMPLATE = Path(__file__).with_name("chat_template.jinja")
