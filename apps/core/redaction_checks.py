"""Tells card numbers, IBANs and phone numbers from other digits. Each returns the part that is one, "" when none is."""

_IBAN_LENGTHS = (
    "AD24 AE23 AL28 AT20 AZ28 BA20 BE16 BG22 BH22 BR29 BY28 CH21 CR22 CY28 CZ24 DE22 DK18 DO28 EE20 EG29 "
    "ES24 FI18 FO18 FR27 GB22 GE22 GI23 GL18 GR27 GT28 HR21 HU28 IE22 IL23 IQ23 IS26 IT27 JO30 KW30 KZ20 "
    "LB28 LC32 LI21 LT20 LU20 LV21 MC27 MD24 ME22 MK19 MR27 MT31 MU30 NL18 NO15 PK24 PL28 PS29 PT25 QA29 "
    "RO24 RS22 SA24 SC31 SE24 SI19 SK24 SM27 ST25 SV28 TL23 TN24 TR26 UA29 VA22 VG24 XK20 "
)
IBAN_LENGTHS = {entry[:2]: int(entry[2:]) for entry in _IBAN_LENGTHS.split()}
CARD_LENGTHS = range(13, 20)
PHONE_LENGTHS = range(8, 16)  # E.164 knows at most 15


def cut_card(text: str) -> str:
    """Return a number of 13 to 19 digits whose last is right by Luhn."""
    digits = [int(char) for char in text if char.isdigit()]
    return text if len(digits) in CARD_LENGTHS and len(set(digits)) > 1 and _luhn(digits) == 0 else ""


def _luhn(digits: list[int]) -> int:
    doubled = [sum(divmod(2 * digit, 10)) for digit in digits[-2::-2]]
    return (sum(digits[-1::-2]) + sum(doubled)) % 10


def cut_iban(text: str) -> str:
    """Return the IBAN at the beginning of the text: its country's length, and right by ISO 7064 (mod 97)."""
    length = IBAN_LENGTHS.get(text[:2], 0)
    end = _end_of(text, length)
    if not length or end is None:
        return ""
    plain = text[:end].replace(" ", "")
    number = int("".join(str(int(char, 36)) for char in plain[4:] + plain[:4]))
    return text[:end] if number % 97 == 1 else ""


def _end_of(text: str, n_characters: int) -> int | None:
    """Return where the first characters that are no spaces end; None when there are fewer, or a word goes on there."""
    seen = 0
    for place, char in enumerate(text):
        seen += char != " "
        if seen == n_characters:
            return None if text[place + 1 : place + 2].isalnum() else place + 1
    return None


def cut_phone(text: str) -> str:
    """Return a number with as many digits as telephones have."""
    return text if sum(char.isdigit() for char in text) in PHONE_LENGTHS else ""
