"""What a component's settings are: checked when made, and taken as keywords."""

from __future__ import annotations

import inspect
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from annotated_types import Ge

from grpokit import PluginError, Trainer, UsageError
from grpokit.registry.factories import call, declared_parameters
from grpokit.settings import Count, Settings, keywords_of, meanings, settings_of


@dataclass(frozen=True, kw_only=True)
class Drawing(Settings):
    """How a box draws.

    Attributes:
        balls: in the box.
        drawn: at a time.
    """

    balls: Count = 3
    drawn: Count | None = None

    def check_together(self) -> None:
        if self.drawn is not None and self.drawn > self.balls:
            raise UsageError(f"drawn is {self.drawn}, and there are {self.balls} balls.")


@dataclass(frozen=True)
class BoxSettings(Drawing):
    """All settings of a box.

    Attributes:
        drawn: without looking.
        name: on its lid.
        extras: whatever else.
    """

    name: str
    _: KW_ONLY
    balls: Count = 5
    extras: Mapping[str, Any] = field(default_factory=lambda: {"lid": True})

    def check_together(self) -> None:
        if not self.name:
            raise UsageError("name is empty.")


class Box:
    @keywords_of(BoxSettings)
    def __init__(self, settings: BoxSettings) -> None:
        self.settings = settings


def test_settings_are_keywords() -> None:
    box = Box("red", drawn=4)
    assert box.settings == BoxSettings("red", balls=5, drawn=4, extras={"lid": True})
    assert Drawing.of({**vars(box.settings), "more": 1}) == Drawing(balls=5, drawn=4)
    assert settings_of(Box) is BoxSettings
    assert meanings(BoxSettings)["drawn"] == meanings(Box)["drawn"] == "without looking."
    parameters = inspect.signature(Box).parameters
    assert {name: (p.annotation, p.default) for name, p in parameters.items()} == {
        "name": (str, inspect.Parameter.empty),
        "balls": (int, 5),
        "drawn": (int | None, None),
        "extras": (Mapping[str, Any], {"lid": True}),
    }


@keywords_of(BoxSettings)
def box_of(settings: BoxSettings) -> Box:
    return Box(settings.name, balls=settings.balls)


def test_a_function_takes_settings_as_keywords() -> None:
    """Its parameters are those of a class, and what others declare comes last."""
    assert box_of("red", balls=7).settings.balls == 7
    assert settings_of(box_of) is BoxSettings
    assert list(inspect.signature(box_of).parameters) == ["name", "extras", "balls", "drawn"]


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"name": "red", "drawn": 0}, "drawn must be at least 1, or None, got 0. drawn: without looking."),
        ({"name": "red", "drawn": 6}, "drawn is 6, and there are 5 balls"),  # of a base
        ({"name": ""}, "name is empty"),
        ({"name": "red", "balls": 2.5}, "balls must be a whole number, got 2.5"),
    ],
    ids=str,
)
def test_bad_settings_have_one_message(parameters: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        Box(**parameters)


@dataclass(frozen=True, kw_only=True)
class Unions(Settings):
    """Types of several kinds.

    Attributes:
        keep: rows.
        limit: bounds around the union.
        scale: any number.
    """

    keep: Count | Literal["auto"] = 1
    limit: Annotated[int | None, Ge(1)] = None
    scale: int | float = 1
    label: str = ""
    stop: Sequence[str] = ()
    sizes: Sequence[int] | None = None
    place: str | Path | None = None
    extras: Mapping[str, Any] | None = None


@pytest.mark.parametrize(
    ("name", "right", "wrong", "words"),
    [
        ("keep", "auto", "auta", "keep must be a whole number, or 'auto', got 'auta' (did you mean 'auto'?)"),
        ("keep", 3, 0, "keep must be at least 1, or 'auto', got 0"),
        ("limit", 3, -3, "limit must be at least 1, or None, got -3"),
        ("scale", 0.5, "x", "scale must be a whole number, or a finite number, got 'x'"),
        ("label", "red", 5, "label must be a text, got 5"),
        ("stop", ["a", "b"], "ab", "stop must be a list of texts, as in ['ab'], got 'ab'"),
        ("stop", ("a",), [1], "stop must be a list of texts (1 is wrong), got a list of 1"),
        ("sizes", [1, 2], [1, 2.5], "sizes must be a list of whole numbers (2.5 is wrong), or None, got a list of 2"),
        ("place", Path("x"), 5, "place must be a text, or a path, or None, got 5"),
        ("extras", {"a": 1}, False, "extras must be a mapping, or None, got false"),
        ("extras", None, {1: 2}, "extras must be a mapping whose keys are texts, or None, got keys"),
    ],
)
def test_each_type_of_a_union_counts(name: str, right: Any, wrong: Any, words: str) -> None:
    assert getattr(Unions(**{name: right}), name) == right
    with pytest.raises(UsageError, match=re.escape(words)):
        Unions(**{name: wrong})


def test_a_config_reads_the_fields() -> None:
    with pytest.raises(PluginError, match="drawn must be a whole number, or None, got 'x'"):
        call(f"{__name__}:Box", {"name": "red", "drawn": "x"}, what="box")
    with pytest.raises(
        PluginError, match=r"has no parameter 'ball' \(did you mean 'balls'\?\). It accepts: name, extras="
    ):
        call(f"{__name__}:Box", {"name": "red", "ball": 1}, what="box")
    assert declared_parameters("advantage", f"{__name__}:Box")[0]["extras"].default == {"lid": True}


def test_a_trainer_shows_its_own_arguments_and_then_its_settings() -> None:
    parameters = inspect.signature(Trainer).parameters
    assert list(parameters)[:4] == ["policy", "rewards", "prompts", "advantage"]
    assert parameters["rewards"].annotation == "Rewards"
    assert (parameters["group_size"].annotation, parameters["group_size"].default) == (int, 8)
    assert "    group_size: G, samples per prompt; GRPO compares" in (inspect.getdoc(Trainer) or "")
