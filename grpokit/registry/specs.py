"""What a plugin yields from its hooks: small records that say what there is, without importing it.

A spec names its factory as a string ("package.module:Name"), imported on first use, so that listing plugins stays
fast and a missing dependency of one reward does not touch the others. New fields come as keywords with defaults.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

API = 1
"""The plugin API of this grpokit. It rises only when plugins written for the old meaning would be wrong."""

OLDEST_API = 1
"""The oldest plugin API whose specs this grpokit still reads."""

KINDS = ("image", "text", "episode")
"""The kinds of output that all plugins share; any other begins with the name of its plugin: "toy:points"."""


@dataclass(frozen=True, kw_only=True)
class Asset:
    """What a component needs and pip does not install, such as weights or a language's data.

    `grpokit doctor` looks for it, and shows the command that fetches it. Nothing is fetched there.

    Attributes:
        name: what it is, perhaps with its size, such as "CLIP ViT-L/14 (0.9 GB)".
        repository: of the Hugging Face hub, such as "me/my-weights". Empty: it lies at one of `paths`.
        files: all that is needed of the repository, as patterns such as "*.safetensors"; "a|b" means that one of the
            two is enough.
        paths: places on disk of which one is enough, as patterns. A "~" stands for the home folder, "$NAME" for a
            variable of the environment, "${NAME:-other}" for the same or, where it is not set, something else.
        fetch: the command that brings it; a repository needs none.
        module: the optional Python module that uses it. Without that module it is not looked for.
    """

    name: str
    repository: str = ""
    files: Sequence[str] = ()
    paths: Sequence[str] = ()
    fetch: str = ""
    module: str = ""


@dataclass(frozen=True, kw_only=True)
class Spec:
    """What all specs share.

    Attributes:
        api: the number of the plugin API that the spec was written for: `api=1` today.
        name: how configs call it; lower case with hyphens.
        factory: "package.module:Name", imported on first use. A class is built with the config's parameters. Each kind
            of spec says what a function does with them.
        summary: one line for `grpokit plugins`.
        install: the exact command that brings missing dependencies, such as "pip install 'grpokit[ocr]'".
        assets: what it needs with its defaults besides Python packages, such as weights.
        example: for `grpokit plugins NAME`, how it is used: a part of a config in YAML, or the line of a command.
            Empty: its name alone, which is enough where all parameters have defaults.
    """

    kind: ClassVar[str]

    api: int
    name: str
    factory: str
    summary: str = ""
    install: str = ""
    assets: Sequence[Asset] = ()
    example: str = ""


@dataclass(frozen=True, kw_only=True)
class RewardSpec(Spec):
    """A reward: a class whose instances score samples, or a function that does so itself.

    Attributes:
        accepts: the kinds of output that it can score: "image", "text", "episode", or another, as "my-plugin:points".
        range: the lowest and highest score; None for no bound.
        per_sample: whether a sample's score is its own. False: it depends on its group (whole groups always come).
        examples: pairs (better, worse), for documentation and checks. Each side is a mapping with `output` and, where
            the reward reads them, `prompt` (its text), `target`, `image`, `meta` and the sample's `info`. For data that
            is not plain, such as pictures, name a function without arguments that returns such pairs:
            "package.module:function".
        unscorable: "package.module:function" that says of a prompt why none of its samples can be scored, such as "it
            has no text in quotes", or "" if they can be. Of the reward's parameters in the config it gets those that
            it names as keywords. A run warns of such prompts before anything is loaded. A `grpokit.DataError` from it
            refuses the run, since the prompt is wrong.
        gpu_memory: the bytes that it takes on a GPU with its defaults, by weights and a pass; 0 if it uses none.
        expected_failures: checks of the conformance kit that it cannot pass by design -> why; they do not count as
            failed.
        statistic: the words for a lower and a higher score, such as ("darker", "brighter"), of a reward that describes
            an output and does not judge it; None for one that judges. `grpokit evaluate --taught` measures statistics
            before and after training. As a monitor, one neither rises nor falls for the better, so no alarm reads it.
        placement: where it runs unless a config says otherwise, in a config's words:
            `{"capsule": {"requires": ["image-reward==1.5"], "python": "3.10"}}`. Options that a config gives for the
            same kind of place are added.
    """

    kind: ClassVar[str] = "reward"

    accepts: frozenset[str] | set[str] = frozenset({"image", "text"})
    range: tuple[float | None, float | None] = (None, None)
    per_sample: bool = True
    examples: Sequence[tuple[Mapping[str, Any], Mapping[str, Any]]] | str = ()
    unscorable: str = ""
    gpu_memory: float = 0.0
    expected_failures: Mapping[str, str] = field(default_factory=dict)
    statistic: tuple[str, str] | None = None
    placement: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class PolicySpec(Spec):
    """A policy: a class or function that returns one.

    Attributes:
        makes: the kind of output: "image", "text", "episode", or another such as "my-plugin:points".
        plan: "package.module:function" that gives memory and time of a step for `grpokit plan`, from `parameters` and
            `job` (`grpokit_plan.Job`), as `grpokit_plan.Needs`. It loads no weights. Empty: there is no plan.
        reader: "package.module:function" that returns, from `parameters`, an object whose `check(prompts)` refuses
            what the policy's own `check` would. It loads no weights, so that a wrong prompt is found before they are
            fetched and read. Empty: the policy looks at its prompts itself, once it is built.
        row_draws: what a sample draws for itself, from `seeds.row`, in a few words, such as "visual tokens".
        group_draws: what a group shares, from `seeds.group`, such as "the decoder's noise". `grpokit attribute` says
            which of the two moves a reward.
    """

    kind: ClassVar[str] = "policy"

    makes: str = "image"
    plan: str = ""
    reader: str = ""
    row_draws: str = "own draws"
    group_draws: str = "shared draws"


@dataclass(frozen=True, kw_only=True)
class AdvantageSpec(Spec):
    """An advantage function `(rewards [B, R], weights [R], groups [B]) -> [B]` or [B, T]; parameters are keywords."""

    kind: ClassVar[str] = "advantage"


@dataclass(frozen=True, kw_only=True)
class ObjectiveSpec(Spec):
    """An objective: a class or function that returns a `grpokit.Objective`."""

    kind: ClassVar[str] = "objective"


@dataclass(frozen=True, kw_only=True)
class ModifierSpec(Spec):
    """A modifier, which changes what a step learns: a class or function that returns a new `grpokit.Modifier`."""

    kind: ClassVar[str] = "modifier"


@dataclass(frozen=True, kw_only=True)
class PlacementSpec(Spec):
    """A kind of place where rewards run, as in `placement: {http: URL}`.

    The factory is a function `(use, params, timeout, *, ...) -> grpokit.Submits`: the reward's name, its parameters,
    and the seconds that a call may take. It returns once samples can be scored there, or raises a `UsageError`. The
    config's options under the kind become keywords.

    Attributes:
        shorthand: the option that a single value in the config stands for.
    """

    kind: ClassVar[str] = "placement"

    shorthand: str = ""


@dataclass(frozen=True, kw_only=True)
class WorldSpec(Spec):
    """A world that a language model talks to: a class or function that returns a new one for each episode."""

    kind: ClassVar[str] = "world"


@dataclass(frozen=True, kw_only=True)
class DatasetSpec(Spec):
    """Prompts for `data: {use: NAME}`: a function that returns them.

    It is called with `split`, "train" or "eval", and with the config's keys beside `use`. It returns an iterable of
    `grpokit.Prompt`, the same ones for the same arguments. No prompt of the one split should be in the other.
    """

    kind: ClassVar[str] = "dataset"


@dataclass(frozen=True, kw_only=True)
class CommandSpec(Spec):
    """A command, `grpokit NAME`: a function that Typer can run. `grpokit --help` shows the summary alone.

    Attributes:
        config: its KEY=VALUE words change a config (`grpokit.cli.options.Overrides`). Its help then ends with presets
            and keys, and a mistyped option is answered with the key.
    """

    kind: ClassVar[str] = "command"

    config: bool = False


@dataclass(frozen=True, kw_only=True)
class PresetSpec(Spec):
    """A ready config: `factory` is "package:path/inside/package.yaml".

    Attributes:
        fetches: it downloads a model or data on first use, so `grpokit check` does not choose it by itself.
        needs: what it needs besides plugins, in a few words: files, weights with their size, memory. Empty: nothing
            but a CPU.
        takes: the measured time, with the machine: "about a minute on two CPU cores". Empty: it was
            not measured.
    """

    kind: ClassVar[str] = "preset"

    fetches: bool = False
    needs: str = ""
    takes: str = ""


@dataclass(frozen=True, kw_only=True)
class EvaluationSpec(Spec):
    """A ready evaluation file: `factory` is "package:path/inside/package.yaml".

    Attributes:
        needs: what it needs besides plugins, in a few words, such as "the address of a judge". Empty: nothing but a
            CPU.
    """

    kind: ClassVar[str] = "evaluation"

    needs: str = ""
