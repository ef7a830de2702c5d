"""What every template of the console may ask for."""

from django.conf import settings
from django.http import HttpRequest


def console(_request: HttpRequest) -> dict[str, object]:
    """Which browser packages are installed."""
    return {"has_fonts": settings.HAS_FONTS, "has_uplot": settings.HAS_UPLOT}
