"""Locust users over WebSocket: `locust -f loadtest/locustfile.py --host http://127.0.0.1:8080`.

Events of the type `WS`: `ttft_cold`, `ttft_warm` (with KV of earlier turns), `itl` (mean between
tokens) and `turn`, from the first try to the end; `lost` fails once per conversation that was given
up. Headless runs end with exit code 1 if a limit of the gate is exceeded.
"""

import itertools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import gevent
from locust import LoadTestShape, User, constant, events, task
from locust.argument_parser import LocustArgumentParser
from locust.env import Environment
from locust.user.task import LOCUST_STATE_STOPPING

from engine.simulation.trace import TraceError
from loadtest.conversation import Conversation
from loadtest.gate import Limits, Totals, broken_limits, parse_p95
from loadtest.options import checked
from loadtest.people import Habits, Person, Said, TracedTurn, load_habits, load_trace
from loadtest.recorder import Recorder, inter_token_s, is_warm
from loadtest.retry import RetryBudget
from loadtest.scenarios import SCENARIOS, CrowdStage, parse_stages, stage_at, stages_of

_DEFAULT_USERS, _DEFAULT_SECONDS = 10, 60.0
_STORM_EVERY_S = 10.0  # all connections drop at these moments
_DOCUMENT_TOKENS = 1500
_SLOW_READ_S = 0.5

_seeds = itertools.count()


@events.init_command_line_parser.add_listener
def _add_options(parser: LocustArgumentParser) -> None:
    group = parser.add_argument_group("sessiond")
    group.add_argument(
        "--scenario",
        default="steady",
        choices=list(SCENARIOS),
        help="Scenario: kinds of users, and their number over time.",
    )
    group.add_argument(
        "--stages",
        type=checked(parse_stages),
        default="",
        help="Stages as USERS:SECONDS,..., instead of -u and -t; with USERS:SECONDS:TOKENS "
        "conversations open with a text of that length.",
    )
    group.add_argument(
        "--trace",
        type=checked(_check_trace),
        default="",
        help="Trace whose sessions are replayed instead of dialogues (docs/traces.md).",
    )
    group.add_argument(
        "--time-scale", type=float, default=0.05, help="Factor for recorded think times."
    )
    group.add_argument(
        "--max-output-tokens", type=int, default=64, help="Maximum reply length in tokens."
    )
    group.add_argument(
        "--patience-s", type=float, default=60.0, help="Time limit of retries in seconds."
    )
    group.add_argument("--seed", type=int, default=1, help="Seed of the random generator.")
    group.add_argument(
        "--api-key", default="", env_var="SESSIOND_API_KEY", help="API key of the users."
    )
    group.add_argument(
        "--record", default="", help="File of observations that `sessiond capacity` reads."
    )
    group.add_argument(
        "--most-lost", type=int, default=0, help="Gate: maximum number of lost conversations."
    )
    group.add_argument(
        "--most-failed", type=float, default=0.01, help="Gate: maximum share of failed turns."
    )
    group.add_argument(
        "--p95",
        action="append",
        type=checked(lambda limit: parse_p95([limit])),
        default=[],
        help="Gate: maximum p95 of an event in milliseconds, as EVENT=MS; may be repeated.",
    )


def _check_trace(path: str) -> None:
    """Raises: ValueError: it can't be read."""
    try:
        load_trace(Path(path))
    except TraceError as error:
        raise ValueError(str(error)) from error


class _Run:
    """State shared by the users of one test."""

    habits: Habits
    traced: Sequence[Sequence[TracedTurn]] = ()

    def __init__(self) -> None:
        self.recorder: Recorder | None = None
        self.lost = 0
        self.refused = 0
        self.length_tokens = 0


_run = _Run()


@events.test_start.add_listener
def _start(environment: Environment, **_: Any) -> None:
    _run.lost = _run.refused = 0
    _run.habits = load_habits()
    options = environment.parsed_options
    _run.traced = load_trace(Path(options.trace)) if options.trace else ()
    _run.recorder = Recorder(options.record)


@events.quitting.add_listener
def _judge(environment: Environment, **_: Any) -> None:
    if _run.recorder is None:  # no test was run
        return
    _run.recorder.close()
    options = environment.parsed_options
    limits = Limits(
        lost=options.most_lost, failed_share=options.most_failed, p95_ms=parse_p95(options.p95)
    )
    broken = broken_limits(_totals(environment), limits)
    for line in broken:
        print(f"gate: {line}")  # noqa: T201 -- the verdict of a headless run
    print(f"gate: {'failed' if broken else 'passed'}; {_run.refused} attempts were refused")  # noqa: T201
    environment.process_exit_code = 1 if broken else 0


def _totals(environment: Environment) -> Totals:
    entries = {name: entry for (name, _), entry in environment.stats.entries.items()}
    turn = entries.get("turn")
    return Totals(
        turns=turn.num_requests if turn else 0,
        failed=turn.num_failures if turn else 0,
        lost=_run.lost,
        refused=_run.refused,
        p95_ms={name: entry.get_response_time_percentile(0.95) for name, entry in entries.items()},
    )


class Crowd(LoadTestShape):
    """Users over time, from the scenario or `--stages`."""

    use_common_options = True

    def __init__(self) -> None:
        super().__init__()
        self._stage: CrowdStage | None = None

    def tick(self) -> tuple[int, float, list[type[User]]] | None:
        """Users, spawn rate and kinds now; locust calls this once a second."""
        options = self.runner.environment.parsed_options
        stages = _stages(options)
        stage = stage_at(stages, self.get_run_time())
        if stage is None:
            return None
        if stage != self._stage and _run.recorder is not None:  # None: called before the start
            self._stage = stage
            _run.length_tokens = stage.length_tokens
            _run.recorder.stage_begun(stage)
        kinds = [_KINDS[name] for name in SCENARIOS[options.scenario].kinds]
        return stage.users, max(1.0, stage.users / 2), kinds


def _stages(options: Any) -> list[CrowdStage]:
    if options.stages:
        return parse_stages(options.stages)
    users = int(options.num_users or _DEFAULT_USERS)
    return stages_of(options.scenario, users, float(options.run_time or _DEFAULT_SECONDS))


class _Client(User):
    """Holds conversations over one socket; after a lost conversation it starts the next."""

    abstract = True
    wait_time = constant(0)
    read_delay_s = 0.0

    def __init__(self, environment: Environment) -> None:
        super().__init__(environment)
        options = environment.parsed_options
        self.person = Person(
            _run.habits,
            options.seed * 1_000_003 + next(_seeds),
            time_scale=options.time_scale,
            most_tokens=options.max_output_tokens,
            traced=_run.traced,
        )
        self._talk = self._connection()

    def _connection(self) -> Conversation:
        options = self.environment.parsed_options
        return Conversation(
            self.host or "http://127.0.0.1:8080",
            api_key=options.api_key or None,
            retry_budget=RetryBudget(seconds=options.patience_s),
            read_delay_s=self.read_delay_s,
            sleep=gevent.sleep,
        )

    def on_stop(self) -> None:
        """Close the connection."""
        self._talk.close()

    @task
    def hold_conversation(self) -> None:
        """Run one conversation until its end, its loss, or a stage of another length."""
        self._talk.close()
        self._talk = self._connection()
        length_tokens = _run.length_tokens
        for said in self.turns():
            if _run.length_tokens != length_tokens:
                return
            if not self.say(said) or self._state == LOCUST_STATE_STOPPING:
                return
            self.think(said.think_s)

    def turns(self) -> Iterator[Said]:
        """The turns of one conversation."""
        return self.person.conversation(opening_tokens=_run.length_tokens)

    def think(self, seconds: float) -> None:
        """Wait between a reply and the next turn."""
        gevent.sleep(seconds)

    def say(self, said: Said) -> bool:
        """Run one turn and report it to locust; returns whether the conversation continues."""
        met = self._talk.say(said.text, max_output_tokens=said.max_output_tokens)
        if _run.recorder is not None:
            _run.recorder.turn(met, self.environment.runner.user_count)
        _run.refused += met.refusals
        _run.lost += met.lost
        self._record("turn", met.total_s, met.code)
        if met.lost:
            self._record("lost", met.total_s, met.code)
            return False
        if met.ttft_s is not None:
            self._record("ttft_warm" if is_warm(met) else "ttft_cold", met.ttft_s)
        between_s = inter_token_s(met)
        if between_s is not None:
            self._record("itl", between_s)
        return True

    def _record(self, name: str, seconds: float, code: str = "") -> None:
        self.environment.events.request.fire(
            request_type="WS",
            name=name,
            response_time=seconds * 1000,
            response_length=0,
            exception=Exception(code) if code else None,
            context={},
        )


class Talker(_Client):
    """Sends the turns of dialogues, with think times."""


class Commuter(_Client):
    """Loses its connection at the same moments as all others, and reconnects."""

    def think(self, seconds: float) -> None:
        """Think until the next moment of the storm, then drop the connection."""
        gevent.sleep(min(seconds, _STORM_EVERY_S))
        gevent.sleep(-time.monotonic() % _STORM_EVERY_S)
        self._talk.drop()


class Reader(_Client):
    """Sends a long document, then questions about it."""

    def turns(self) -> Iterator[Said]:
        """The turns with a document before the first message."""
        return self.person.conversation(opening_tokens=_DOCUMENT_TOKENS)


class Abuser(_Client):
    """Sends turns without think time and requests the longest replies."""

    def turns(self) -> Iterator[Said]:
        """The turns with the longest replies and no think time."""
        longest = self.environment.parsed_options.max_output_tokens
        for said in self.person.conversation():
            yield Said(said.text, longest, 0.0)


class SlowReader(_Client):
    """Reads slowly: the server merges deltas or closes with 1013; others must stay fast."""

    read_delay_s = _SLOW_READ_S


_KINDS: dict[str, type[User]] = {
    kind.__name__: kind for kind in (Talker, Commuter, Reader, Abuser, SlowReader)
}
