"""Which of an answer's tokens a piece of its text is made of. Works on the tokens' texts, as the engine tells them."""

from itertools import accumulate

from apps.gateway.dialect import Json


def show_logprobs(items: list[Json]) -> list[Json]:
    """Return the engine's log-probs as a Responses text part holds them."""
    return [{**_show(item), "top_logprobs": [_show(top) for top in item.get("top_logprobs") or ()]} for item in items]


def cut_logprobs(items: list[Json], text: str) -> list[Json]:
    """Return those of an answer's tokens that `text`, a part of it, is made of; [] when it is not there."""
    whole, ends = _join([str(item.get("token") or "") for item in items])
    start = whole.rfind(text) if text else -1  # the last: thoughts may have said it before
    if start < 0:
        return []
    begins = [0, *ends[:-1]]
    return [
        item
        for item, begin, end in zip(items, begins, ends, strict=True)
        if begin < start + len(text) and end > start and end > begin
    ]


def count_tokens_through(tokens: list[str], text: str) -> int:
    """Return how many tokens the answer has up to the end of `text`, 0 when it is not there."""
    if not text:
        return 0
    whole, ends = _join(tokens)
    start = whole.find(text)
    return 0 if start < 0 else sum(end < start + len(text) for end in ends) + 1


def _join(tokens: list[str]) -> tuple[str, list[int]]:
    """Return the tokens' text and where in it each of them ends."""
    return "".join(tokens), list(accumulate(len(token) for token in tokens))


def _show(item: Json) -> Json:
    token = str(item.get("token") or "")
    return {"token": token, "logprob": item.get("logprob"), "bytes": item.get("bytes") or list(token.encode())}
