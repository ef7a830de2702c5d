"""Forms of the console: they parse and complain in words; services decide."""

from collections.abc import Sequence
from typing import Any

from django import forms
from django.contrib.auth.forms import AuthenticationForm
from django.db.models import QuerySet

from apps.accounts.attempts import forget_failures, note_failure, seconds_to_wait
from apps.accounts.models import EMAIL_MAX_LENGTH, Role, Scope, Team
from apps.console.templatetags.console import duration
from apps.registry.models import Policy


class LoginForm(AuthenticationForm):
    """E-mail and password."""

    error_messages = {
        "invalid_login": "No account has this e-mail and password. Check both; capitals count in the password.",
        "inactive": "This account is switched off. Ask an owner of your team.",
    }

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        is_again = bool(self.data.get("username"))  # the e-mail stands there still
        self.fields["username"].label = "E-mail"
        self.fields["username"].widget = forms.EmailInput(
            attrs={"autocomplete": "username", "autofocus": not is_again, "spellcheck": "false"}
        )
        self.fields["password"].widget.attrs["autofocus"] = is_again

    def clean_username(self) -> str:
        """Accounts are kept in lower case."""
        return str(self.cleaned_data["username"]).strip().lower()

    def clean(self) -> dict[str, Any]:
        """Look whether the password is right, unless too many have been tried."""
        email = self.cleaned_data.get("username", "")
        address = str(self.request.META.get("REMOTE_ADDR", "")) if self.request else ""
        if wait_s := seconds_to_wait(email, address):
            raise forms.ValidationError(f"Too many wrong passwords. Try again in {duration(wait_s)}.")
        try:
            cleaned: dict[str, Any] = super().clean()
        except forms.ValidationError:
            note_failure(email, address)
            raise
        if self.get_user() is not None:  # a form without a password comes here too
            forget_failures(email, address)
        return cleaned


class ProjectForm(forms.Form):
    """A new project of one of the person's own teams, with the base weights of one that is there."""

    name = forms.CharField(max_length=100, label="Name")
    team = forms.ModelChoiceField(queryset=Team.objects.none(), label="Team")
    base = forms.ChoiceField(label="Base model")

    def __init__(self, *args: Any, teams: QuerySet[Team], bases: Sequence[Policy], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.bases = {policy.pk: policy for policy in bases}
        self.fields["team"].queryset = teams  # type: ignore[attr-defined]
        self.fields["base"].choices = [(policy.pk, policy.base_model) for policy in bases]  # type: ignore[attr-defined]

    def clean_base(self) -> Policy:
        """Return the policy whose base it is."""
        return self.bases[self.cleaned_data["base"]]


class AgentForm(forms.Form):
    """A new agent."""

    name = forms.CharField(max_length=100, label="Name", help_text="What people call it, such as “Shop clerk”.")


class KeyForm(forms.Form):
    """A new API key."""

    name = forms.CharField(max_length=100, required=False, label="Name")
    scope = forms.ChoiceField(choices=Scope.choices, required=False, label="May")
    is_one_session = forms.BooleanField(required=False, label="One session")

    def clean_scope(self) -> str:
        """The smaller scope when none is chosen."""
        return self.cleaned_data["scope"] or Scope.AGENT


class PersonForm(forms.Form):
    """Somebody who is to join the team."""

    email = forms.EmailField(max_length=EMAIL_MAX_LENGTH, label="E-mail")
    name = forms.CharField(max_length=100, required=False, label="Name")
    role = forms.ChoiceField(choices=Role.choices, initial=Role.REVIEWER, label="Role")


class RoleForm(forms.Form):
    """What a member may do from now on."""

    role = forms.ChoiceField(choices=Role.choices)


class LabelForm(forms.Form):
    """A reward for a trajectory, or for one step of it."""

    value = forms.FloatField(
        min_value=-1,
        max_value=1,
        error_messages={
            "required": "Say how good it was: a number from −1 to 1.",
            "invalid": "A reward is a number from −1 to 1.",
            "min_value": "A reward is a number from −1 to 1.",
            "max_value": "A reward is a number from −1 to 1.",
        },
    )
    step = forms.CharField(max_length=40, required=False)
    text = forms.CharField(max_length=4000, required=False)

    @property
    def first_error(self) -> str:
        return str(next(iter(self.errors.values()))[0])
