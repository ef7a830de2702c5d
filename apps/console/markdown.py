"""Words that were said, as Markdown shows them. What comes out is safe HTML whatever came in: none of the text's own,
no pictures, no addresses but of the web and of mail.
"""

import nh3
from django.utils.safestring import SafeString, mark_safe
from markdown_it import MarkdownIt

_READER = MarkdownIt("commonmark", {"html": False, "breaks": True}).enable(["table", "strikethrough"])
_TAGS = {
    *("a", "blockquote", "br", "code", "del", "em", "hr", "li", "ol", "p", "pre", "s", "strong", "ul"),
    *("h1", "h2", "h3", "h4", "h5", "h6", "table", "thead", "tbody", "tr", "th", "td"),
}
_CLEANER = nh3.Cleaner(
    tags=_TAGS,
    attributes={"a": {"href", "title"}, "ol": {"start"}},
    url_schemes={"http", "https", "mailto"},
    link_rel="noopener noreferrer nofollow",
)


def render_markdown(text: str) -> SafeString:
    """Return the text as HTML, its headings one level lower: a page has a first one of its own."""
    tokens = _READER.parse(text)
    for token in tokens:
        if token.type.startswith("heading_"):
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
    html = _READER.renderer.render(tokens, _READER.options, {})
    return mark_safe(_CLEANER.clean(html))  # noqa: S308 (nh3 has cleaned it)
