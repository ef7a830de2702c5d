"""Generated tasks: one question about one city, and what the city's tools will answer.

Cities for training and for the held-out check are disjoint, so a rise on the held-out ones is skill, not memory. Knows
nothing of models or of how an answer is judged.
"""

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Channel = Literal["train", "val"]
ToolName = Literal["get_weather", "get_time"]

QUESTIONS: dict[ToolName, tuple[str, ...]] = {
    "get_weather": (
        "What is the weather in {city}?",
        "How is the weather in {city} today?",
        "Do I need an umbrella in {city}?",
        "Is it warm in {city}?",
        "Is it raining in {city} right now?",
        "Should I take a coat to {city}?",
    ),
    "get_time": (
        "What time is it in {city}?",
        "Is it late in {city}?",
        "Tell me the time in {city}.",
        "Are people in {city} still asleep?",
        "What does the clock say in {city}?",
        "Is it morning in {city}?",
    ),
}
SKIES = ("sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "clear", "stormy")


def _list_names(text: str) -> tuple[str, ...]:
    return tuple(" ".join(text.split()).split(", "))


TRAIN_CITIES = _list_names("""
    Accra, Algiers, Amman, Amsterdam, Ankara, Antwerp, Athens, Auckland, Baghdad, Baku, Bamako, Bangkok,
    Barcelona, Basel, Beijing, Beirut, Belfast, Belgrade, Bergen, Berlin, Bilbao, Bogota, Bologna, Bordeaux,
    Boston, Bratislava, Bremen, Brisbane, Bristol, Brussels, Bucharest, Budapest, Cairo, Calgary, Cape Town,
    Caracas, Cardiff, Casablanca, Chennai, Chicago, Cologne, Copenhagen, Cordoba, Cork, Dakar, Dallas, Damascus,
    Delhi, Denver, Detroit, Dhaka, Doha, Dresden, Dubai, Dublin, Durban, Edinburgh, Florence, Frankfurt, Geneva,
    Genoa, Glasgow, Granada, Hamburg, Hanoi, Harare, Havana, Helsinki, Houston, Istanbul, Jakarta, Jerusalem,
    Kabul, Kampala, Karachi, Kathmandu, Khartoum, Kingston, Kinshasa, Krakow, Kyoto, Lagos, Lahore, Leeds,
    Leipzig, Lima, Lisbon, Liverpool, London, Luanda, Lusaka, Lyon, Madrid, Malaga, Manila, Marseille,
    Melbourne, Memphis, Miami, Milan, Minsk, Montreal, Moscow, Mumbai, Munich, Nairobi, Naples, New York, Nice,
    Osaka
""")
VAL_CITIES = _list_names("""
    Adelaide, Bern, Brasilia, Canberra, Colombo, Darwin, Gdansk, Ghent, Hobart, Hong Kong, Kiev, La Paz, Las
    Vegas, Lille, Malmo, Monaco, Mexico City, Nantes, Oslo, Ottawa, Oxford, Perth, Porto, Prague, Quito, Rabat,
    Riga, Rio, Rome, Rotterdam, Santiago, Seattle, Seoul, Seville, Sofia, Sydney, Tallinn, Tokyo, Turin, Vienna
""")
CITIES: dict[Channel, Sequence[str]] = {"train": TRAIN_CITIES, "val": VAL_CITIES}


@dataclass(frozen=True, kw_only=True)
class Task:
    """A question about `city` that needs one call of `tool`. Every tool of the task's world answers for every city."""

    question: str
    city: str
    tool: ToolName
    seed: int
    channel: Channel

    def answer_tool(self, name: ToolName, *, city: str) -> str:
        """Return what the tool says about `city`: always the same within one task, different between tasks."""
        chance = random.Random(f"{self.seed}/{name}/{city.lower()}")
        if name == "get_weather":
            return f"{chance.randint(2, 38)} degrees and {chance.choice(SKIES)}"
        return f"{chance.randint(0, 23):02d}:{chance.randint(0, 59):02d}"

    @property
    def result(self) -> str:
        """Return what the right call yields: it cannot be guessed."""
        return self.answer_tool(self.tool, city=self.city)


def generate_tasks(n_tasks: int, *, channel: Channel, seed: int) -> list[Task]:
    """Return `n_tasks` tasks, as many for one tool as for the other, over the channel's cities in a random order."""
    chance = random.Random(f"{channel}/{seed}")
    cities: list[str] = []
    while len(cities) < n_tasks:
        cities += chance.sample(CITIES[channel], len(CITIES[channel]))
    tools: list[ToolName] = ["get_weather", "get_time"]
    return [
        Task(
            question=chance.choice(QUESTIONS[tools[number % 2]]).format(city=city),
            city=city,
            tool=tools[number % 2],
            seed=chance.getrandbits(32),
            channel=channel,
        )
        for number, city in enumerate(cities[:n_tasks])
    ]
