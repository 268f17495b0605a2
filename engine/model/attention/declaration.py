"""Declared capabilities of attention backends, and the choice between them. Pure; no torch.

A backend that torch runs is a folder of `engine.model.attention` with two modules:

- `declaration.py` needs neither torch nor the backend's packages. It has `DECLARATIONS`, a tuple
  of `Declaration`s of one name, best first: one for each library version that behaves differently
  (flash-attn 2.8, 3 and 4), else just one.
- `backend.py` is imported only when the backend was chosen. Its `build(spec, arithmetic,
  declaration)` returns an `AttentionBackend` (engine.model.attention.protocol).

`engine.model.attention.registry` names the folders, in the order in which `auto` prefers them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

from engine.errors import ConfigError

PositionForm = Literal["slot", "absolute"]  # as in engine.kv.tensors, which imports torch
Version = tuple[int, ...]

_SETTING_NAMES = {"float8_e4m3fn": "fp8"}  # where a setting's value is not torch's name


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """A required distribution, of version `at_least` and up, `below` another."""

    name: str
    at_least: Version = ()
    below: Version | None = None

    def __str__(self) -> str:
        """Return it as a requirement: `flash-attn>=2.8,<3`."""
        bounds = [f">={_dotted(self.at_least)}"] if self.at_least else []
        bounds += [f"<{_dotted(self.below)}"] if self.below is not None else []
        return self.name + ",".join(bounds)

    def is_in(self, installed: Mapping[str, Version]) -> bool:
        """Whether a suitable version is installed."""
        version = installed.get(self.name)
        if version is None:
            return False
        return version >= self.at_least and (self.below is None or version < self.below)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """Capabilities of one backend with one version of its library.

    `name` is the value of `--attention-backend`, `title` names the library in messages.
    `page_multiple`: pages are multiples of this many tokens (1: any). `position_form`: the form of
    K that it reads from the store: "slot" is rotated by the slot in its block only, so that blocks
    may move to other positions; "absolute" is rotated by the token's position. Types have torch's
    names without `torch.`; `kv_dtypes` None: KV must have the type of the computation. A head's
    size is a multiple of `head_multiple`, at most `max_head_dim`. `windows`: layers may have a
    sliding window. `below_capability` is the first compute capability that it can't run on.
    """

    name: str
    title: str
    device_types: frozenset[str]
    dtypes: frozenset[str]
    kv_dtypes: frozenset[str] | None
    least_capability: tuple[int, int] = (0, 0)
    below_capability: tuple[int, int] | None = None
    page_multiple: int = 1
    position_form: PositionForm = "slot"
    head_multiple: int = 2
    max_head_dim: int | None = None
    windows: bool = True
    packages: tuple[Package, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionRequirements:
    """Requirements of a model and device. `capability` is None on a CPU."""

    device_type: str
    capability: tuple[int, int] | None
    block_size: int
    dtype: str
    kv_dtype: str
    head_dim: int
    has_windows: bool
    installed: Mapping[str, Version] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Obstacle:
    """Why a backend can't serve. `remedy`: the setting or installation that helps, if any."""

    reason: str
    remedy: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BackendCandidate:
    """A backend and its obstacles here."""

    declaration: Declaration
    obstacles: tuple[Obstacle, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionChoice:
    """The chosen backend, and the reason as text, with the obstacles of each better one."""

    declaration: Declaration
    reason: str


def candidate(declaration: Declaration, requirements: AttentionRequirements) -> BackendCandidate:
    """Compare a declaration with the requirements. On a wrong device only the device counts."""
    obstacles = _device_obstacles(declaration, requirements) or [
        *_type_obstacles(declaration, requirements),
        *_shape_obstacles(declaration, requirements),
        *_package_obstacles(declaration, requirements),
    ]
    return BackendCandidate(declaration=declaration, obstacles=tuple(obstacles))


def choose_attention(wish: str, candidates: Sequence[BackendCandidate]) -> AttentionChoice:
    """Choose the first candidate without obstacles, of the requested name unless that is `auto`.

    Raises:
        ConfigError: there is none; the message names the obstacles, and what would work.
    """
    wished = [each for each in candidates if wish in ("auto", each.declaration.name)]
    for place, each in enumerate(wished):
        if each.obstacles:
            continue
        better = _obstacles_text(wished[:place])
        asked = "the first suitable one" if wish == "auto" else "set by --attention-backend"
        reason = f"{asked} ({better})" if better else asked
        return AttentionChoice(declaration=each.declaration, reason=reason)
    raise ConfigError("attention_backend", wish, _what_would_work(wish, wished, candidates))


def _what_would_work(
    wish: str, wished: Sequence[BackendCandidate], all_of: Sequence[BackendCandidate]
) -> str:
    able = dict.fromkeys(each.declaration.name for each in all_of if not each.obstacles)
    nearest = sorted(wished, key=_distance)
    ways = [", ".join(able)] if able else []
    equally = [each for each in nearest if _distance(each) == _distance(nearest[0])]
    ways += [_with_remedies(each) for each in equally if not _without_remedy(each)]
    reasons = _obstacles_text(nearest if wish == "auto" else equally) or "there is no such backend"
    return f"{', or '.join(ways) or 'no backend'} ({reasons})"


def _with_remedies(each: BackendCandidate) -> str:
    remedies = " and ".join(obstacle.remedy for obstacle in each.obstacles)
    return f"{each.declaration.name} with {remedies}"


def _distance(each: BackendCandidate) -> tuple[int, int, int]:
    """How much has to change for this candidate: a setting is less than an installation."""
    no_setting = sum(not obstacle.remedy.startswith("--") for obstacle in each.obstacles)
    return _without_remedy(each), no_setting, len(each.obstacles)


def _without_remedy(each: BackendCandidate) -> int:
    return sum(not obstacle.remedy for obstacle in each.obstacles)


def _obstacles_text(candidates: Sequence[BackendCandidate]) -> str:
    texts: dict[str, None] = {}
    for each in candidates:
        reasons = ", ".join(obstacle.reason for obstacle in each.obstacles)
        texts[f"{each.declaration.title} {reasons}"] = None
    return "; ".join(texts)


def _device_obstacles(
    declaration: Declaration, requirements: AttentionRequirements
) -> list[Obstacle]:
    if requirements.device_type not in declaration.device_types:
        allowed = _listed(declaration.device_types)
        return [Obstacle(reason=f"runs on {allowed} only, not on {requirements.device_type}")]
    if requirements.capability is None:
        return []
    least, below = declaration.least_capability, declaration.below_capability
    if requirements.capability >= least and (below is None or requirements.capability < below):
        return []
    bounds = f"{_dotted(least)} or more" + (f", below {_dotted(below)}" if below else "")
    have = _dotted(requirements.capability)
    return [Obstacle(reason=f"needs compute capability {bounds}; this device has {have}")]


def _type_obstacles(
    declaration: Declaration, requirements: AttentionRequirements
) -> list[Obstacle]:
    found = []
    if requirements.dtype not in declaration.dtypes:
        found.append(
            Obstacle(
                reason=f"computes in {_listed(declaration.dtypes)}, not {requirements.dtype}",
                remedy=_one_of("--dtype", declaration.dtypes),
            )
        )
    if declaration.kv_dtypes is None:
        if requirements.kv_dtype != requirements.dtype:
            found.append(
                Obstacle(
                    reason=f"supports KV in the type of activations ({requirements.dtype}), not "
                    f"{requirements.kv_dtype}",
                    remedy="--kv-cache-dtype auto",
                )
            )
    elif requirements.kv_dtype not in declaration.kv_dtypes:
        found.append(
            Obstacle(
                reason=f"supports KV in {_listed(declaration.kv_dtypes)}, "
                f"not {requirements.kv_dtype}",
                remedy=_one_of("--kv-cache-dtype", declaration.kv_dtypes),
            )
        )
    return found


def _shape_obstacles(
    declaration: Declaration, requirements: AttentionRequirements
) -> list[Obstacle]:
    found = []
    pages = declaration.page_multiple
    if requirements.block_size % pages:
        found.append(
            Obstacle(
                reason=(
                    f"needs blocks of a multiple of {pages} tokens, not {requirements.block_size}"
                ),
                remedy=f"--block-size {pages}",
            )
        )
    most = declaration.max_head_dim
    if requirements.head_dim % declaration.head_multiple or (
        most is not None and requirements.head_dim > most
    ):
        bounds = f"multiples of {declaration.head_multiple}" + (f" up to {most}" if most else "")
        found.append(
            Obstacle(
                reason=f"supports head dimensions of {bounds}; "
                f"the model has {requirements.head_dim}"
            )
        )
    if requirements.has_windows and not declaration.windows:
        found.append(Obstacle(reason="does not support sliding windows, which the model uses"))
    return found


def _package_obstacles(
    declaration: Declaration, requirements: AttentionRequirements
) -> list[Obstacle]:
    missing = [
        str(package)
        for package in declaration.packages
        if not package.is_in(requirements.installed)
    ]
    wanted = f"{' and '.join(missing)} installed"
    return [Obstacle(reason=f"needs {wanted}", remedy=wanted)] if missing else []


def _one_of(setting: str, values: frozenset[str]) -> str:
    names = sorted(_SETTING_NAMES.get(value, value) for value in values)
    return f"{setting} {' or '.join(names)}"


def _listed(values: frozenset[str]) -> str:
    return ", ".join(sorted(values))


def _dotted(version: Sequence[int]) -> str:
    return ".".join(map(str, version))
