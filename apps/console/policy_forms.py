"""Forms of an agent's policies: limits, and what the pool keeps. They parse and complain in words; services decide."""

from typing import Any

from django import forms

from apps.accounts.limited import HIGHEST_LIMIT, LIMIT_NAMES
from apps.accounts.models import Agent, CaptureMode
from apps.core.redaction import BUILT_IN_NAMES

LIMIT_LABELS = {
    "requests_per_minute": "Requests a minute",
    "tokens_per_minute": "Tokens a minute",
    "max_in_flight": "Calls at one moment",
    "tokens_per_day": "Tokens a day (UTC)",
}
PATTERN_LABELS = {
    "email": "E-mail addresses",
    "secret": "API keys, tokens, private keys",
    "iban": "Bank accounts (IBAN)",
    "credit_card": "Card numbers",
    "phone": "Telephone numbers",
}


class LimitsForm(forms.Form):
    """The limits of one key, project or team; an empty field is no limit."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        for name in LIMIT_NAMES:
            self.fields[name] = forms.IntegerField(
                min_value=1, max_value=HIGHEST_LIMIT, required=False, label=LIMIT_LABELS[name]
            )


class CaptureForm(forms.Form):
    """What the pool keeps of an agent's calls."""

    mode = forms.ChoiceField(choices=CaptureMode.choices)
    patterns = forms.MultipleChoiceField(
        choices=[(name, PATTERN_LABELS[name]) for name in BUILT_IN_NAMES], required=False
    )
    own_patterns = forms.CharField(required=False, strip=False, max_length=20_000)

    @classmethod
    def of(cls, agent: Agent) -> "CaptureForm":
        """Return the form as the agent's policy has it now."""
        lines = [f"{pattern['name']} {pattern['pattern']}" for pattern in agent.own_patterns]
        initial = {"mode": agent.capture, "patterns": agent.patterns, "own_patterns": "\n".join(lines)}
        return cls(initial=initial)

    def clean_own_patterns(self) -> list[dict[str, str]]:
        """Read one pattern a line: its name, a space, the expression."""
        patterns = []
        for line in self.cleaned_data["own_patterns"].splitlines():
            if not line.strip():
                continue
            name, _, pattern = line.strip().partition(" ")
            if not pattern.strip():
                raise forms.ValidationError(f"“{line}” needs a name, a space and a pattern, such as: ticket TKT-[0-9]+")
            patterns.append({"name": name, "pattern": pattern.strip()})
        return patterns
