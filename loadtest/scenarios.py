"""Load scenarios: kinds of users and their number over time. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class CrowdStage:
    """A constant number of users for some seconds.

    Conversations that they begin open with a text of `length_tokens`.
    """

    users: int
    seconds: float
    length_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Kinds of users by their class names in the locustfile, and their number over time.

    `shares`: users of each stage relative to the maximum; all stages have the same duration.
    """

    kinds: Sequence[str]
    shares: Sequence[float]
    about: str


SCENARIOS: Mapping[str, Scenario] = {
    "steady": Scenario(kinds=["Talker"], shares=[1.0], about="a constant number of conversations"),
    "ramp": Scenario(
        kinds=["Talker"],
        shares=[0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0],
        about="a number that rises in steps",
    ),
    "burst": Scenario(
        kinds=["Talker"],
        shares=[0.2, 1.0, 0.2, 1.0, 0.2],
        about="few conversations, suddenly many, few again",
    ),
    "reconnect-storm": Scenario(
        kinds=["Commuter"],
        shares=[1.0],
        about="all clients lose their connection at the same moments",
    ),
    "long-documents": Scenario(
        kinds=["Reader"], shares=[1.0], about="a long document first, then short questions about it"
    ),
    "quota-abusers": Scenario(
        kinds=["Talker", "Abuser"],
        shares=[1.0],
        about="half of the clients send turns without think time",
    ),
    "slow-readers": Scenario(
        kinds=["Talker", "SlowReader"],
        shares=[1.0],
        about="half of the clients read replies slowly",
    ),
}


def stages_of(name: str, users: int, seconds: float) -> list[CrowdStage]:
    """The stages of a scenario with at most `users` users and a total of `seconds`."""
    shares = SCENARIOS[name].shares
    return [CrowdStage(max(1, round(share * users)), seconds / len(shares)) for share in shares]


def parse_stages(text: str) -> list[CrowdStage]:
    """Read `USERS:SECONDS,...` or `USERS:SECONDS:TOKENS,...`.

    Raises:
        ValueError: names the expected form.
    """
    try:
        parts = [part.split(":") for part in text.split(",")]
        stages = [
            CrowdStage(int(users), float(seconds), *map(int, length))
            for users, seconds, *length in parts
            if len(length) <= 1
        ]
    except ValueError:
        stages = []
    if len(stages) < len(text.split(",")) or not all(map(_is_possible, stages)):
        raise ValueError(f"stages must be USERS:SECONDS,... as in 5:30,10:30 (got {text!r})")
    return stages


def _is_possible(stage: CrowdStage) -> bool:
    return stage.users >= 1 and stage.seconds > 0 and stage.length_tokens >= 0


def stage_at(stages: Sequence[CrowdStage], elapsed_s: float) -> CrowdStage | None:
    """The stage that runs now; None after the last."""
    ends = accumulate(stage.seconds for stage in stages)
    return next((s for s, end in zip(stages, ends, strict=True) if elapsed_s < end), None)
