"""The settings of training, each declared once: its type, bounds, default and meaning.

`Trainer`, the objectives and `RewardTerm` inherit these dataclasses, so a setting is a keyword argument there. A config
derives its keys from the same fields, and `check_settings` makes the error message for both. The meaning is the field's
line in the docstring. Nothing here imports torch, so a mistake in a config is reported at once.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import math
import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import NoneType, UnionType
from typing import (
    Annotated,
    Any,
    Concatenate,
    Literal,
    ParamSpec,
    Protocol,
    Self,
    TypeAlias,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    overload,
)

from annotated_types import Ge, Gt, Le, Lt

from grpokit.errors import UsageError, brief, nearest, plural

Count: TypeAlias = Annotated[int, Ge(1), Le(1_000_000)]
"""A number of things: at least 1."""
Total: TypeAlias = Annotated[int, Ge(1), Le(1_000_000_000)]
"""A number that may be long, such as the steps of a run: at least 1."""
Whole: TypeAlias = Annotated[int, Ge(0), Le(1_000_000_000)]
"""A number of things that may be none: at least 0."""
GroupSize: TypeAlias = Annotated[int, Ge(2), Le(1_000_000)]
"""Samples of a prompt that are compared with each other: at least 2."""
Seed: TypeAlias = Annotated[int, Ge(-(2**63)), Lt(2**63)]
"""The seed that all random draws follow from: any whole number of 64 bits."""
Positive: TypeAlias = Annotated[float, Gt(0)]
"""A finite number above 0."""
NotNegative: TypeAlias = Annotated[float, Ge(0)]
"""A finite number, at least 0."""
Share: TypeAlias = Annotated[float, Ge(0), Le(1)]
"""A part of a whole, from 0 to 1."""
BelowOne: TypeAlias = Annotated[float, Ge(0), Lt(1)]
"""At least 0 and below 1, such as how much a moving average keeps."""
AboveOne: TypeAlias = Annotated[float, Gt(1)]
"""A finite number above 1."""

P = ParamSpec("P")
R = TypeVar("R")
S_co = TypeVar("S_co", covariant=True)
_T = TypeVar("_T")

Optimizer: TypeAlias = Literal["adamw", "adamw_8bit", "paged_adamw_8bit"]
"""AdamW with averages in fp32, in 8 bits, or in 8 bits that may wait in the CPU's memory."""
Schedule: TypeAlias = Literal["constant", "linear", "cosine"]
"""How the learning rate changes after the warm-up."""
Precision: TypeAlias = Literal["no", "bf16", "fp16"]
"""What autocast computes in; "no" is fp32."""
Device: TypeAlias = Literal["auto", "cpu", "cuda"]
"""Where a run computes; "auto" is the GPU if there is one."""
RatioKind: TypeAlias = Literal["token", "sequence", "guard"]
"""What an importance ratio is computed for; `ObjectiveSettings` says more."""
KLKind: TypeAlias = Literal["k1", "k2", "k3", "gaussian", "velocity"]
"""How the KL from the reference is estimated."""
Reduction: TypeAlias = Literal["sequence_mean", "token_mean", "fixed_length", "sequence_sum"]
"""How the losses of a batch's decisions are averaged."""


@dataclass(frozen=True, kw_only=True)
class Settings:
    """Base class for the settings of a component; they are checked when they are made.

    Raises:
        UsageError: as `check_settings`.
    """

    def __post_init__(self) -> None:
        check_settings(self)

    @classmethod
    def of(cls, parameters: Mapping[str, Any]) -> Self:
        """The settings among `parameters`, which may have more; a missing one has its default."""
        names = [field.name for field in dataclasses.fields(cls) if field.name in parameters]
        return cls(**{name: parameters[name] for name in names})


@dataclass(kw_only=True)
class SeedSettings:
    """The source of randomness.

    Attributes:
        seed: all randomness follows from it.
    """

    seed: Seed = 42


@dataclass(kw_only=True)
class TrainerSettings:
    """How a trainer trains. An update is one optimizer step.

    Attributes:
        steps: the number of steps of `for report in trainer`; also the horizon of the schedule.
        prompts_per_step: P, groups per step.
        group_size: G, samples per prompt; GRPO compares the samples of a group with each other.
        micro_batch_size: the most rows in one forward and backward pass; changes memory and speed, not the result.
        micro_batch_tokens: the most decisions scored in one pass, padding included: rows x the longest row, or the sum
            of all rows with a policy that packs them; a longer row gets its own pass. None sets no bound.
        rollout_batch_size: the most rows drawn at a time; None draws all at once.
        updates_per_rollout: passes over a rollout; a pass makes as many updates as there are minibatches.
        minibatches: updates per pass, each on an equal share of the groups.
        optimizer: "adamw"; "adamw_8bit": with averages of 8 bits, by bitsandbytes; "paged_adamw_8bit": the same, and
            they go to the CPU where a GPU's memory runs out.
        learning_rate: of AdamW, after the warm-up.
        warmup_steps: optimizer steps over which the rate rises linearly from 0.
        schedule: "constant", or "linear" or "cosine" down to 0 over all steps.
        weight_decay: of AdamW.
        adam_beta1: how much AdamW keeps of its mean of the gradients.
        adam_beta2: how much it keeps of its mean of their squares.
        adam_epsilon: what AdamW adds to the root of that mean; a weight with smaller gradients hardly moves. Set 1e-15
            if rewards are tiny or an adapter begins at 0.
        max_grad_norm: gradients are scaled down to this norm; None does not clip them.
        mixed_precision: "no", "bf16" or "fp16": one autocast around rollout, logprobs and reference.
        device: "auto", "cpu" or "cuda".
        max_logprob_diff: the largest mean difference, in nats, between the rollout's log-probs and those of the first
            training pass; None means the usual limit of the precision.
        dynamic_sampling: groups that teach nothing are drawn again, from further prompts, up to this many times a step;
            0 never.
        correction: importance weights where a rollout's log-probs are not those of training; None for none.
        max_policy_lag: the most optimizer steps by which the weights of a rollout may be behind those of the policy.
        max_zero_std_steps: training ends after this many steps in a row with only zero-std groups: as converged, or
            with an error if the reward has been higher before. Where rewards do not teach, it ends with an error after
            so many without a gradient. None sets no limit.
    """

    steps: Total = 200
    prompts_per_step: Count = 4
    group_size: GroupSize = 8
    micro_batch_size: Count = 8
    micro_batch_tokens: Count | None = None
    rollout_batch_size: Count | None = None
    updates_per_rollout: Count = 1
    minibatches: Count = 1
    optimizer: Optimizer = "adamw"
    learning_rate: Positive = 5e-6
    warmup_steps: Whole = 0
    schedule: Schedule = "constant"
    weight_decay: NotNegative = 0.0
    adam_beta1: BelowOne = 0.9
    adam_beta2: BelowOne = 0.999
    adam_epsilon: Positive = 1e-8
    max_grad_norm: Positive | None = 1.0
    mixed_precision: Precision = "no"
    device: Device = "auto"
    max_logprob_diff: Positive | None = None
    dynamic_sampling: Whole = 0
    correction: Correction | None = None
    max_policy_lag: Whole = 0
    max_zero_std_steps: Total | None = 20

    @property
    def updates_per_step(self) -> int:
        """Updates per rollout, over all passes."""
        return self.updates_per_rollout * self.minibatches

    def describe(self) -> str:
        """One line that resolves the arithmetic of batches."""
        rows, share = self.prompts_per_step * self.group_size, self.prompts_per_step // self.minibatches  # in groups
        size, updates = self.micro_batch_size, self.updates_per_step
        fits = size // self.group_size  # groups in a micro-batch; a larger group is cut
        cuts = math.ceil(share / fits) if fits else share * math.ceil(self.group_size / size)
        parts = f"{plural(cuts, 'micro-batch')} of at most {size:,}"
        if self.micro_batch_tokens is not None:
            parts = f"micro-batches of at most {size:,} rows and {self.micro_batch_tokens:,} decisions"
        return (
            f"{plural(self.prompts_per_step, 'prompt')} x {self.group_size} samples = {rows:,} rows a step; "
            f"{plural(updates, 'update')} of {share * self.group_size:,} rows in {parts}; "
            f"{plural(self.steps, 'step')} = {plural(self.steps * updates, 'update')} on "
            f"{self.steps * rows:,} samples"
        )

    def check_together(self) -> None:
        """Refuse numbers that do not fit together.

        Raises:
            UsageError: minibatches that do not divide the prompts, or a too small epsilon.
        """
        if self.prompts_per_step % self.minibatches:
            raise UsageError(
                f"minibatches={self.minibatches} does not divide prompts_per_step={self.prompts_per_step}: every "
                "optimizer step takes the same number of whole groups."
            )
        if self.optimizer != "adamw" and self.adam_epsilon < 1e-8:
            raise UsageError(
                f"adam_epsilon={self.adam_epsilon:g} is too small for optimizer '{self.optimizer}', which rounds small "
                "averages to 0: weights without gradient would jump. Set at least 1e-8, or leave optimizer out."
            )


@dataclass(frozen=True, kw_only=True)
class ObjectiveSettings(Settings):
    """The settings of all objectives.

    Attributes:
        ratio: "token": one importance ratio per decision; "sequence": the geometric mean over a row's decisions;
            "guard": one per Gaussian decision, without the drift of its mean below 1 (GRPO-Guard).
        reduction: how a batch is averaged: "sequence_mean", "token_mean", "fixed_length" or "sequence_sum".
        kl: the estimator of the KL from the reference; "gaussian" if decisions have several dimensions; "velocity": the
            mean square of the difference of a flow's velocities.
        kl_coef: weight of that KL; 0 needs no reference.
        kl_bias_correction: weight the KL by the importance ratio, with gradient: then its gradient is unbiased.
        entropy_coef: weight of the entropy bonus.
        off_policy_mask_threshold: a row with A < 0 gives no policy loss once its mean of old - new log-probs is above
            this many nats; None keeps all rows.
    """

    ratio: RatioKind = "token"
    reduction: Reduction = "sequence_mean"
    kl: KLKind = "k3"
    kl_coef: NotNegative = 0.0
    kl_bias_correction: bool = False
    entropy_coef: float = 0.0
    off_policy_mask_threshold: Positive | None = None

    def check_together(self) -> None:
        """Refuse to correct what is exact.

        Raises:
            UsageError: with the two settings.
        """
        if self.kl_bias_correction and self.kl in ("gaussian", "velocity"):
            raise UsageError(
                f"kl '{self.kl}' is exact, so kl_bias_correction has nothing to correct; leave one of them out."
            )


@dataclass(frozen=True, kw_only=True)
class Correction(Settings):
    """Weights of the surrogate where a rollout's log-probs are not those of training: the ratio of the two.

    Attributes:
        how: "truncate": a weight outside the bounds becomes the nearest bound; "mask": it becomes 0.
        per: "token": one weight per decision; "sequence": the product over a row's decisions.
        low: the lower bound.
        high: the upper bound.
    """

    how: Literal["truncate", "mask"] = "truncate"
    per: Literal["token", "sequence"] = "token"
    low: NotNegative = 0.0
    high: Positive = 2.0

    def check_together(self) -> None:
        """Refuse bounds that exclude the weight 1, which right log-probs have.

        Raises:
            UsageError: with the bounds.
        """
        if not self.low <= 1 <= self.high:
            raise UsageError(
                f"A correction needs low <= 1 <= high, since equal log-probs have the weight 1; got low={self.low} "
                f"and high={self.high}."
            )


@dataclass(frozen=True, kw_only=True)
class ClipSettings:
    """The range in which an importance ratio counts.

    Attributes:
        clip_range: how far below 1 the ratio counts.
        clip_range_high: how far above 1 the ratio counts; None means as far as below.
        dual_clip: c > 1 (3 is usual): the loss of a decision with A < 0 is at most -c A; None sets no bound.
    """

    clip_range: Positive = 0.2
    clip_range_high: Positive | None = None
    dual_clip: AboveOne | None = None


@dataclass(frozen=True, kw_only=True)
class RewardSettings:
    """A reward's part in the mix.

    Attributes:
        weight: factor in the weighted sum; a reward with weight 0 is a monitor: measured, but not trained on.
        every: a monitor is measured in the first of every this many training steps.
        on_error: "stop" or "skip"; "skip" leaves the rows of an exception unscored.
        skip_limit: with "skip", the run stops if exceptions leave a larger share of rows than this unscored.
    """

    weight: float = 1.0
    every: Total = 1
    on_error: Literal["stop", "skip"] = "stop"
    skip_limit: Share = 0.5


def numbered_names(names: Iterable[str]) -> list[str]:
    """Names of rewards as metrics have them: with a number where one comes twice, or has another meaning there.

    >>> numbered_names(["ocr", "ocr", "reward"])
    ['ocr', 'ocr-2', 'reward-2']
    """
    taken = ["reward", "step"]
    for name in names:
        own = name
        number = 1
        while own in taken:
            number += 1
            own = f"{name}-{number}"
        taken.append(own)
    return taken[2:]


_MEANING = re.compile(r"^ {4}(\w+)(?: \([^)]*\))?: ((?:.|\n {8})*)", re.MULTILINE)


def meanings(target: Any) -> dict[str, str]:
    """Parameter -> its meaning, from the docstrings of a function, or of a class, its bases and its settings.

    >>> meanings(ClipSettings)["clip_range"]
    'how far below 1 the ratio counts.'
    """
    docstrings = []
    for kind in filter(None, (target, settings_of(target))):
        for home in reversed(kind.__mro__) if isinstance(kind, type) else [kind]:
            docstrings += [inspect.getdoc(home), inspect.getdoc(getattr(home, "__init__", None))]
    described = _MEANING.findall("\n".join(filter(None, docstrings)))
    return {name: " ".join(text.split()) for name, text in described}


def in_words(target: Any, name: str) -> str:
    """The meaning of a parameter as a sentence behind another one; empty if no docstring has it."""
    meaning = meanings(target).get(name)
    return f" {name}: {meaning}" if meaning else ""


def check_settings(settings: Any) -> None:
    """Check the fields of a dataclass by their types and bounds, then by each `check_together` of it and its bases.

    Raises:
        UsageError: a value has another type or is out of bounds; the message has the field's meaning.
    """
    hints = get_type_hints(type(settings), include_extras=True)
    for field in dataclasses.fields(settings):
        mistake = problem(getattr(settings, field.name), hints[field.name])
        if mistake:
            raise UsageError(f"{field.name} {mistake}.{in_words(type(settings), field.name)}")
    for kind in reversed(type(settings).__mro__):
        if "check_together" in vars(kind):
            vars(kind)["check_together"](settings)


class _Keywords(Protocol[P, S_co]):
    """Lets a function, or a constructor, that is written for settings take their fields."""

    @overload
    def __call__(self, function: Callable[[S_co], R], /) -> Callable[P, R]: ...
    @overload
    def __call__(self, function: Callable[[_T, S_co], R], /) -> Callable[Concatenate[_T, P], R]: ...


def keywords_of(kind: Callable[P, S_co]) -> _Keywords[P, S_co]:
    """Let a constructor or a function that is written for a dataclass of settings take its fields as arguments.

    So each setting is declared once, with its type, bounds, default and meaning. Signatures, `grpokit plugins`, the
    gallery and error messages read the fields.

    >>> @dataclass(frozen=True, kw_only=True)
    ... class DieSettings(Settings):
    ...     sides: Annotated[int, Ge(2)] = 6
    >>> class Die:
    ...     @keywords_of(DieSettings)
    ...     def __init__(self, settings: DieSettings) -> None:
    ...         self.settings = settings
    >>> Die(sides=20).settings
    DieSettings(sides=20)
    >>> Die(sides=1)
    Traceback (most recent call last):
        ...
    grpokit.errors.UsageError: sides must be at least 2, got 1.

    Args:
        kind: the dataclass. Its annotations must be there at run time.
    """
    hints = get_type_hints(kind)
    home: dict[str, int] = {}  # field -> how far up is the class that first declared it
    for depth, base in enumerate(inspect.getmro(kind)):  # type: ignore[arg-type]
        home |= dict.fromkeys(inspect.get_annotations(base), depth)
    defaults = {
        field.name: field.default_factory()
        for field in dataclasses.fields(kind)  # type: ignore[arg-type]
        if field.default_factory is not dataclasses.MISSING
    }

    def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
        *owner, _ = inspect.signature(function).parameters.values()  # self, of a constructor

        @functools.wraps(function)
        def flat(*args: Any, **kwargs: Any) -> Any:
            own, fields = args[: len(owner)], args[len(owner) :]
            return function(*own, kind(*fields, **kwargs))

        parameters = [
            each.replace(annotation=hints[name], default=defaults.get(name, each.default))
            for name, each in inspect.signature(kind).parameters.items()
        ]
        parameters.sort(key=lambda each: (each.kind, home[each.name]))  # what others share comes last
        vars(flat).update(settings=kind, __signature__=inspect.Signature([*owner, *parameters]))
        flat.__annotations__ = hints
        return flat

    return decorate


def with_settings_shown(kind: type[_T]) -> type[_T]:
    """Let `help` and notebooks show the arguments of a dataclass: its own, then the settings that it inherits.

    Types of settings come without their aliases, and their meanings stand behind the docstring.
    """
    own, hints = inspect.get_annotations(kind), get_type_hints(kind)
    arguments = inspect.signature(kind).parameters.values()
    settings = [each.replace(annotation=hints[each.name]) for each in arguments if each.name not in own]
    others = []
    for each in arguments:
        if each.name in own:
            written = re.sub(r"^InitVar\[(.*)\]$", r"\1", str(each.annotation))
            others.append(each.replace(annotation=written))
    function: Any = kind.__init__
    owner = inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)
    function.__signature__ = inspect.Signature([owner, *others, *settings])
    described = meanings(kind)
    lines = [f"    {each.name}: {described[each.name]}" for each in settings]
    kind.__doc__ = "\n".join([inspect.getdoc(kind) or "", "", "Settings:", *lines])
    return kind


def type_text(hint: Any) -> str:
    """A type as one writes it, without its bounds.

    >>> type_text(Count | None), type_text(Literal["a", "b"]), type_text(Mapping[str, Any])
    ('int | None', "Literal['a', 'b']", 'Mapping[str, Any]')
    """
    if get_origin(hint) in (Union, UnionType):
        return " | ".join(type_text(part) for part in get_args(hint))
    if get_origin(hint) is Annotated:
        return type_text(get_args(hint)[0])
    return "None" if hint is NoneType else re.sub(r"\b(?:\w+\.)+(?=\w)", "", inspect.formatannotation(hint))


def settings_of(target: Any) -> type | None:
    """The dataclass whose fields a class or a function takes as arguments; None if there is none.

    >>> settings_of(ClipSettings)
    <class 'grpokit.settings.ClipSettings'>
    """
    if dataclasses.is_dataclass(target) and isinstance(target, type):
        return target
    function = getattr(target, "__init__", None) if isinstance(target, type) else target
    return getattr(function, "settings", None)


_PLAIN = {NoneType: "None", str: "a text", bool: "true or false", Path: "a path"}
_BOUNDS = (
    ("ge", "at least", operator.ge),
    ("gt", "above", operator.gt),
    ("le", "at most", operator.le),
    ("lt", "below", operator.lt),
)


def problem(value: Any, hint: Any) -> str:
    """What is wrong with a value, such as "must be at least 1, got 0"; empty if it is right, or has no rule."""
    requirements: list[str] = []
    choices: list[str] = []
    for rule, bounds in _alternatives(hint):
        requirement = _requirement(value, rule, bounds)
        if requirement is None:
            return ""
        requirements.append(requirement)
        choices += map(str, get_args(rule)) if get_origin(rule) is Literal else []
    hint_text = nearest(value, choices) if isinstance(value, str) else ""
    if _PLAIN[str] in requirements and isinstance(value, int | float):  # which YAML has made of a text such as 3.10
        hint_text = " (put it in quotes)"
    return f"must be {', or '.join(requirements)}, got {brief(value)}{hint_text}"


def _alternatives(hint: Any, bounds: tuple[Any, ...] = ()) -> list[tuple[Any, tuple[Any, ...]]]:
    """The types that a hint allows, each with its bounds; None comes last."""
    if get_origin(hint) is Annotated:
        inner, *own = get_args(hint)
        return _alternatives(inner, (*bounds, *own))
    if get_origin(hint) not in (Union, UnionType):
        return [(hint, bounds)]
    alternatives = []
    for part in sorted(get_args(hint), key=lambda part: part is NoneType):
        alternatives += _alternatives(part, bounds)
    return alternatives


def _requirement(value: Any, rule: Any, bounds: Sequence[Any]) -> str | None:
    """The requirement that a value does not meet, in words; None if it meets all, or there is no rule for the type."""
    if rule in _PLAIN:
        return None if isinstance(value, rule) else _PLAIN[rule]
    origin = get_origin(rule)
    if origin is Literal:
        choices = get_args(rule)
        return None if value in choices else " or ".join(map(repr, choices))
    if origin in (Sequence, list):
        return _list_requirement(value, *get_args(rule))
    if origin in (Mapping, dict):
        if not isinstance(value, Mapping):
            return "a mapping"
        fits = get_args(rule)[0] is not str or all(isinstance(key, str) for key in value)
        return None if fits else "a mapping whose keys are texts"
    if dataclasses.is_dataclass(rule) and isinstance(rule, type):
        return None if isinstance(value, rule) else f"a grpokit.{rule.__name__}"
    if rule not in (int, float):
        return "a number" if isinstance(value, float) and math.isnan(value) else None
    whole = isinstance(value, int) and not isinstance(value, bool)
    if not (whole or (rule is float and isinstance(value, float) and math.isfinite(value))):
        return "a whole number" if rule is int else "a finite number"
    return next(_violations(value, bounds), None)


def _list_requirement(value: Any, kind: Any) -> str | None:
    """As `_requirement`, of a list whose items have one type."""
    items = {str: "a list of texts", int: "a list of whole numbers", float: "a list of numbers"}.get(kind, "a list")
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        one_text = isinstance(value, str) and not problem(value, kind)
        return f"{items}, as in [{value!r}]" if one_text else items
    wrong = [item for item in value if problem(item, kind)]
    return f"{items} ({brief(wrong[0])} is wrong)" if wrong else None


def _violations(value: float, bounds: Sequence[Any]) -> Iterator[str]:
    """The bounds that a number violates, in words."""
    for bound in bounds:
        for name, words, holds in _BOUNDS:
            limit = getattr(bound, name, None)
            if limit is not None and not holds(value, limit):
                yield f"{words} {limit:,}"
