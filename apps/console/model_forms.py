"""Forms of the model line: how calls are split, providers and teachers. They parse; services decide."""

from collections.abc import Sequence

from django import forms

from apps.registry.models import AliasName, Engine

MOST_IN_FLIGHT = 100_000
MOST_TAKEN = 99  # per cent, of live's calls


class SplitForm(forms.Form):
    """What each alias beside live takes of live's calls, in per cent; live keeps the rest."""

    candidate = forms.IntegerField(min_value=0, max_value=MOST_TAKEN, required=False, label="candidate")
    previous = forms.IntegerField(min_value=0, max_value=MOST_TAKEN, required=False, label="previous")

    def clean(self) -> dict[str, int]:
        """Read an empty field as nothing; live must keep some."""
        taken = {name: value or 0 for name, value in self.cleaned_data.items()}
        if sum(taken.values()) > MOST_TAKEN:
            raise forms.ValidationError("live must keep at least 1: to let another version take over, make it live")
        return taken

    def shares(self) -> dict[AliasName, int]:
        """Return the shares that make 100."""
        taken = {AliasName(name): value for name, value in self.cleaned_data.items()}
        return {AliasName.LIVE: 100 - sum(taken.values()), **taken}


class CredentialForm(forms.Form):
    """A provider's credential, entered anew."""

    credential = forms.CharField(max_length=1000, required=False, strip=True, label="Credential")


class ProviderForm(CredentialForm):
    """A provider with OpenAI's API."""

    base_url = forms.CharField(max_length=200, label="Base URL")
    max_in_flight = forms.IntegerField(min_value=1, max_value=MOST_IN_FLIGHT, required=False, label="Calls at once")


class TeacherForm(forms.Form):
    """A provider's model under a name of the project."""

    name = forms.CharField(max_length=100, label="Name")
    model = forms.CharField(max_length=200, label="Model")
    engine = forms.ChoiceField(label="Provider")

    def __init__(self, *args: object, providers: Sequence[Engine], **kwargs: object) -> None:
        super().__init__(*args, **kwargs)  # type: ignore[arg-type]
        self.fields["engine"] = forms.ChoiceField(
            label="Provider", choices=[(engine.id, engine.base_url) for engine in providers]
        )
