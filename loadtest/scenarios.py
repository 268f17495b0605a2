"""Load scenarios: kinds of users and their number over time. Pure."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class CrowdStage:
    """So many users for so many seconds."""

    users: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """Kinds of people by their names in the locustfile; `shares` of the most users per stage.

    Each share holds for an equal part of the time.
    """

    kinds: Sequence[str]
    shares: Sequence[float]
    about: str


SCENARIOS: Mapping[str, Scenario] = {
    "steady": Scenario(
        kinds=["Talker"], shares=[1.0], about="people who talk, all the time the same number"
    ),
    "ramp": Scenario(
        kinds=["Talker"],
        shares=[0.125, 0.25, 0.375, 0.5, 0.625, 0.75, 0.875, 1.0],
        about="more people step by step",
    ),
    "burst": Scenario(
        kinds=["Talker"],
        shares=[0.2, 1.0, 0.2, 1.0, 0.2],
        about="few people, suddenly many, few again",
    ),
    "reconnect-storm": Scenario(
        kinds=["Commuter"], shares=[1.0], about="all lose their connection at the same moments"
    ),
    "long-documents": Scenario(
        kinds=["Reader"], shares=[1.0], about="a long text first, then short questions about it"
    ),
    "quota-abusers": Scenario(
        kinds=["Talker", "Abuser"], shares=[1.0], about="half of them never wait or think"
    ),
    "slow-readers": Scenario(
        kinds=["Talker", "SlowReader"], shares=[1.0], about="half of them hardly read replies"
    ),
}


def stages_of(name: str, users: int, seconds: float) -> list[CrowdStage]:
    """The stages of a scenario with at most `users` users, `seconds` in all."""
    shares = SCENARIOS[name].shares
    return [CrowdStage(max(1, round(share * users)), seconds / len(shares)) for share in shares]


def parse_stages(text: str) -> list[CrowdStage]:
    """Read `USERS:SECONDS,...`.

    Raises:
        ValueError: names the expected form.
    """
    try:
        pairs = [part.split(":") for part in text.split(",")]
        stages = [CrowdStage(int(users), float(seconds)) for users, seconds in pairs]
    except ValueError:
        stages = []
    if not stages or any(stage.users < 1 or stage.seconds <= 0 for stage in stages):
        raise ValueError(f"stages must be USERS:SECONDS,... as in 5:30,10:30 (got {text!r})")
    return stages


def stage_at(stages: Sequence[CrowdStage], elapsed_s: float) -> CrowdStage | None:
    """The stage that runs now; None after the last."""
    ends = accumulate(stage.seconds for stage in stages)
    return next((s for s, end in zip(stages, ends, strict=True) if elapsed_s < end), None)
