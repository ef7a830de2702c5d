"""How the console writes numbers, times, rewards and icons. Knows no page, but whose it is."""

from datetime import datetime
from typing import Any

from django import template
from django.template import Context
from django.templatetags.static import static
from django.utils import timezone
from django.utils.html import format_html
from django.utils.safestring import SafeString

from apps.console.grader_form import name_setting
from apps.console.markdown import render_markdown
from apps.training.batching import DiscardReason

register = template.Library()

MINUTE, HOUR, DAY = 60, 3600, 86400
THEMES = ("light", "dark")


@register.filter
def duration(seconds: float | None) -> str:
    """`0.42 s`, `3.1 s`, `12 min`, `3 h 20 min`, `2 d`."""
    if seconds is None:
        return "–"
    if seconds < 2 * MINUTE:
        return f"{seconds:.{2 if seconds < 1 else 1 if seconds < 10 else 0}f} s"
    if seconds < 2 * HOUR:
        return f"{seconds / MINUTE:.0f} min"
    if seconds < 2 * DAY:
        hours, rest = divmod(int(seconds), HOUR)
        return f"{hours} h {rest // MINUTE} min"
    return f"{seconds / DAY:.0f} d"


@register.filter
def ago(at: datetime | None) -> SafeString | str:
    """A relative time with the exact one on hover; JavaScript keeps it fresh and in the reader's zone."""
    if at is None:
        return "never"
    iso = at.isoformat(timespec="seconds")
    passed = (timezone.now() - at).total_seconds()
    words = "just now" if passed < 5 else f"{duration(passed)} ago"
    return format_html('<time datetime="{}" title="{}">{}</time>', iso, f"{at:%Y-%m-%d %H:%M:%S} UTC", words)


@register.filter
def between(later: datetime | None, earlier: datetime | None) -> str:
    """The time from `earlier` to `later`, in words."""
    if later is None or earlier is None:
        return "–"
    return duration((later - earlier).total_seconds())


@register.filter
def signed(value: float | None) -> str:
    """A reward: `+0.50`, `−1.00`, `0.00`, or a dash for none."""
    if value is None:
        return "–"
    text = f"{abs(value):.2f}"
    if float(text) == 0:
        return text
    return f"{'+' if value > 0 else '−'}{text}"


register.filter(name_setting)


@register.filter
def why_left_out(reason: str) -> str:
    """Why a step was not trained on, in words; a batch keeps the reason's name."""
    known = DiscardReason.__members__.get(reason.upper())
    return known.value if known else reason.replace("_", " ")


@register.filter
def tone(value: float | None) -> str:
    """The colour name of a reward; the sign says the same without colour."""
    if value is None:
        return "none"
    return "good" if value > 0.005 else "bad" if value < -0.005 else "zero"


@register.filter
def number(value: Any) -> str:
    """An integer with separators, a float with up to four significant digits; a true minus sign."""
    if value is None or value == "":
        return "–"
    if not isinstance(value, float):
        text = f"{value:,}"
    elif value != 0 and abs(value) < 0.001:
        text = f"{value:.1e}"
    else:
        text = f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"
    return f"−{text[1:]}" if text.startswith("-") else text


@register.filter
def percent(value: float) -> str:
    """A share between 0 and 1 as a percentage."""
    return f"{100 * value:.1f} %"


@register.filter
def short_id(value: object) -> str:
    """The prefix of an id and its last six characters, which differ."""
    text = str(value)
    return f"{text.split('_', 1)[0]}…{text[-6:]}" if "_" in text and len(text) > 14 else text


@register.filter
def item(mapping: dict[str, Any], key: str) -> Any:
    """The value of a key."""
    return mapping.get(key)


@register.filter
def theme_name(value: object) -> str:
    """The theme a cookie names, else the system's."""
    return str(value) if value in THEMES else "system"


@register.simple_tag
def icon(name: str) -> SafeString:
    """A small drawing beside words; it says nothing alone."""
    return format_html(
        '<svg class="icon" aria-hidden="true" focusable="false"><use href="{}#{}"></use></svg>',
        static("icons.svg"),
        name,
    )


@register.inclusion_tag("console/parts/copy.html")
def copy(value: object, label: str = "", *, wide: bool = False) -> dict[str, object]:
    """A button that copies `value`; shown only where JavaScript runs."""
    return {"value": value, "label": label, "wide": wide}


@register.inclusion_tag("console/parts/reward.html")
def reward(value: float | None) -> dict[str, object]:
    """A reward as a signed, coloured number."""
    return {"value": value}


@register.inclusion_tag("console/parts/reward.html", takes_context=True)
def reward_of(context: Context, trajectory_id: str, value: float | None) -> dict[str, object]:
    """A reward of a trajectory, or of something in it: hidden while this person reviews the trajectory blind."""
    return {"value": value, "is_hidden": trajectory_id in context["page"].hidden}


@register.inclusion_tag("console/parts/fault.html")
def fault(error: object) -> dict[str, str]:
    """What is wrong, as the first line of an error's message says; of a search also its text, a caret at the place."""
    words, _, place = str(getattr(error, "message", error)).partition("\n")
    return {"words": words.removeprefix("q, "), "place": place}


@register.inclusion_tag("console/parts/tokens.html")
def tokens_of(one: Any, *, in_words: bool = False) -> dict[str, int | bool]:
    """The tokens of a step, a trajectory or what a snapshot keeps of one; a dash, or words, where nobody counted."""
    return {"n_prompt": one.n_prompt_tokens, "n_completion": one.n_completion_tokens, "in_words": in_words}


@register.filter
def markdown(text: str) -> SafeString:
    """What was said, as Markdown shows it."""
    return render_markdown(text)


@register.inclusion_tag("console/parts/text.html")
def folded(text: object) -> dict[str, object]:
    """A text of transcript.Text, its middle folded."""
    return {"text": text}
