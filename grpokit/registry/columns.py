"""Rewards of columns, as TRL, verl, Flow-GRPO and verifiers call them, become rewards of samples.

The file imports the standard library only and runs on Python 3.8, so an environment without grpokit can load it by its
path. Of a sample it reads `prompt.text`, `prompt.images`, `prompt.target`, `prompt.meta`, `output` and `info`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import itertools
import math
import os
import re
import threading
from types import SimpleNamespace
from typing import Any, Awaitable, Mapping, Sequence

_OF_A_ROW = {"completion", "solution_str"}
"""A reward with one of these parameters is called for each sample, with the sample's own values."""

_OF_ALL_ROWS = {"completions", "completion_ids", "solution_strs"}
"""A reward with one of these is called once, with a list per parameter."""

_OF_CALL = {"trainer_state", "log_extra", "log_metric"}
"""Parameters that have one value for all samples."""

_OTHERS = {"prompt", "prompts", "image", "images", "metadata", "state", "environments"}
COMPUTED = frozenset(_OF_A_ROW | _OF_ALL_ROWS | _OF_CALL | _OTHERS)
"""Parameters that are no columns of the data, so nobody else may set them."""

_TARGETS = ("target", "answer", "solution", "ground_truth", "label")
"""What data may call a target; a column of that name comes first."""

_ERRORS = {
    "messages": "string indices must be integers|'str' object has no attribute 'get'",
    "texts": "expected string or bytes-like object|'list' object has no attribute '(strip|split|lower|find)'",
    "array": r"'list' object has no attribute '(transpose|permute|shape|cpu)'|bytes-like .* required, not '\w*Image",
}
"""By the form that a reward wants: what errors say of another form."""

_ABSENT = object()


def takes_columns(reward: Any) -> bool:
    """Whether a reward is to be called with columns; one with a single parameter `completions` takes samples."""
    parameters = _open_parameters(reward)
    required = {name for name, p in parameters.items() if _is_required(p)}
    has_keywords = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
    if "completions" in required:
        return len(required) > 1 or has_keywords or any(map(_is_filled, parameters.keys() - required))
    no_place_for_samples = has_keywords and len(parameters) == 1
    of_texts = bool(required & (_OF_A_ROW | _OF_ALL_ROWS))
    return of_texts or {"images", "prompts"} <= required or no_place_for_samples


def makes_reward(function: Any, parameters: Mapping[str, Any]) -> bool:
    """Whether a function returns a reward: its annotation says so, or its parameters leave no argument for samples."""
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # nothing to call, or compiled code
        return False
    takes = signature.parameters
    complete = all(p.default is not p.empty or name in parameters for name, p in takes.items())
    return (complete and "samples" not in takes) or "Callable" in str(signature.return_annotation)


def of_samples(reward: Any, *, error: type[Exception] = ValueError) -> Any:
    """A reward that is called with samples, whoever it was written for.

    One that takes columns gets them by name: the completions, the prompts, what the prompts' meta has, and the target
    under whatever name. `None` becomes NaN, and coroutines are awaited, those of all rows at once.

    Args:
        reward: a function or an object to call.
        error: what is raised where the samples lack something that it takes.

    Returns:
        The same object if it takes samples and is not async, else a callable of samples.

    Raises:
        error: it takes what only its own trainer can give it.
    """
    if takes_columns(reward):
        return ColumnReward(reward, error=error)
    return _Async(reward) if _is_async(reward) else reward


class ColumnReward:
    """A reward that takes columns, called with samples.

    Args:
        reward: the function or object.
        error: as of `of_samples`.

    Attributes:
        columns: the names of the columns that the data must have; the target has names of its own.
    """

    def __init__(self, reward: Any, *, error: type[Exception] = ValueError) -> None:
        self.reward, self.error = reward, error
        self.__name__ = _name_of(reward)
        parameters = _open_parameters(reward)
        self._required = [name for name, p in parameters.items() if _is_required(p)]
        self._optional = {name: p.default for name, p in parameters.items() if p.default is not p.empty}
        self._takes_more = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        self._constants = _bound(reward)
        texts = (_OF_A_ROW | _OF_ALL_ROWS) & {*self._required}
        self._by_row = bool(texts & _OF_A_ROW)
        self._of_pictures = "images" in self._required and not texts
        self._names = self._looked_for()
        self._form = _annotated_form(parameters)
        self.columns = [name for name in self._required if not _is_filled(name) and _singular(name) != "extra_info"]
        if "environments" in self._required:
            raise error(f"{self.__name__} takes `environments`, which only TRL's trainer has. Rewrite it without.")

    def __call__(self, samples: Sequence[Any]) -> Any:
        """One score for each sample."""
        if not samples:
            return []
        form = self._form or ("messages" if any(s.prompt.meta.get("messages") for s in samples) else "texts")
        try:
            return self._scores(samples, form)
        except (AttributeError, TypeError) as wrong:
            wanted = [each for each, words in _ERRORS.items() if re.search(words, str(wrong))]
            if not wanted or wanted[0] == form:
                raise
            better = wanted[0]
        except IndexError:  # such as `completion[0]` of an empty text, which says nothing: the others do
            others = [sample for sample in samples if sample.output]
            if form == self._form or len(others) == len(samples):
                raise
            self(others)
            if self._form is None:
                raise
            better = self._form
        scores = self._scores(samples, better)
        self._form = better
        return scores

    def _scores(self, samples: Sequence[Any], form: str) -> Any:
        columns = self._columns(samples, form)
        shared = {name: value for name, value in _of_call(samples).items() if self._wants(name)}
        if self._by_row:
            values = []
            for row in range(len(samples)):
                own = {name: column[row] for name, column in columns.items()}
                values.append(self.reward(**own, **shared))
            return [_score(value) for value in _awaited(values)]
        if self._of_pictures and form == "array":
            columns["images"] = _array(columns["images"])
        (scores,) = _awaited([self.reward(**columns, **shared)])
        if self._of_pictures and isinstance(scores, tuple):
            scores = scores[0]  # behind it are details
        if isinstance(scores, Mapping):
            scores = scores.get("avg", scores)  # of several scores of Flow-GRPO
        if hasattr(scores, "tolist"):
            scores = scores.tolist()
        return [_score(score) for score in scores] if isinstance(scores, (list, tuple)) else scores

    def _wants(self, name: str) -> bool:
        return name in {*self._required, *self._optional} or (self._takes_more and name not in self._constants)

    def _looked_for(self) -> list[str]:
        """The names of parameters that are filled where it can be done, whatever columns the data has."""
        names = [*self._required]
        has_target = any(map(_is_target, names))
        for name, default in self._optional.items():
            if default is None or name in COMPUTED or (_is_target(name) and not has_target):
                names.append(name)
        if self._takes_more:
            names += ["prompt", "state"] if self._by_row else ["prompts", "completions", "completion_ids", "images"]
            names += [name for name in _TARGETS if name not in self._optional]
        return names

    def _columns(self, samples: Sequence[Any], form: str) -> dict[str, Any]:
        names = [*self._names]
        for sample in samples:
            names += sample.prompt.meta
        columns = {}
        for name in dict.fromkeys(names):
            if name in _OF_CALL or not self._wants(name):
                continue
            column = self._column(name, samples, form)
            if column is not None:
                columns[name] = column
            elif name in self._required:
                raise self.error(_what_is_missing(self.__name__, name, samples))
        return columns

    def _column(self, name: str, samples: Sequence[Any], form: str) -> list[Any] | None:
        """What the samples have under a name, or of several rows under its singular; None if none of them has it."""
        names = [name] if self._by_row else [name, _singular(name)]
        for each in names:
            cells = [self._cell(each, sample, form) for sample in samples]
            if any(cell is not _ABSENT for cell in cells):
                return [None if cell is _ABSENT else cell for cell in cells]
        return None

    def _cell(self, name: str, sample: Any, form: str) -> Any:
        """What a sample has under a name, or `_ABSENT`."""
        prompt = sample.prompt
        if name in ("completion", "completions"):
            return self._answer(sample) if form == "messages" else self._output(sample)
        if name in ("solution_str", "solution_strs"):
            return self._output(sample)
        if name in ("prompt", "prompts"):
            if form == "messages":
                return prompt.meta.get("messages") or [{"role": "user", "content": prompt.text}]
            return prompt.text
        if name == "images" and self._of_pictures:  # Flow-GRPO's are outputs
            return self._output(sample)
        if name == "images":
            return list(prompt.images) or _ABSENT
        if name == "image":
            return next(iter(prompt.images), _ABSENT)
        if name == "completion_ids":
            ids = sample.info.get("token_ids", _ABSENT)
            return ids.tolist() if hasattr(ids, "tolist") else ids
        if name == "metadata":
            return prompt.meta
        if name == "state":
            turn = {part: self._cell(part, sample, form) for part in ("prompt", "completion")}
            return {"answer": prompt.target, **prompt.meta, **turn}
        if name in prompt.meta:
            return prompt.meta[name]
        if name == "extra_info":  # verl's data need not have it
            return {}
        if name in _TARGETS and prompt.target is not None:
            return prompt.target
        return _ABSENT

    def _output(self, sample: Any) -> Any:
        if self._of_pictures:
            expected, fits = "a picture", hasattr(sample.output, "getbands")
        else:
            expected, fits = "a text", isinstance(sample.output, str)
        if not fits:
            raise self.error(f"{self.__name__} scores {expected}, and got {type(sample.output).__name__}.")
        return sample.output

    def _answer(self, sample: Any) -> list[Any]:
        """The model's turns as messages; of a world also what it answered."""
        messages = sample.info.get("messages", ())
        turns = itertools.dropwhile(lambda message: message["role"] != "assistant", messages)
        return list(turns) or [{"role": "assistant", "content": self._output(sample)}]


class _Async:
    """An async reward of samples, called without `await`."""

    def __init__(self, reward: Any) -> None:
        self.reward = reward
        self.__name__ = _name_of(reward)

    def __call__(self, samples: Sequence[Any]) -> Any:
        return _awaited([self.reward(samples)])[0]


def _open_parameters(reward: Any) -> Mapping[str, inspect.Parameter]:
    """The parameters that a call has to fill in, or may."""
    try:
        parameters = inspect.signature(reward).parameters
    except (TypeError, ValueError):  # nothing to call, or compiled code
        return {}
    return {name: p for name, p in parameters.items() if name not in _bound(reward)}


def _bound(reward: Any) -> Mapping[str, Any]:
    """What a `functools.partial` has filled in."""
    return reward.keywords if isinstance(reward, functools.partial) else {}


def _is_required(parameter: inspect.Parameter) -> bool:
    is_named = parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    return is_named and parameter.default is parameter.empty


def _is_target(parameter: str) -> bool:
    return _singular(parameter) in _TARGETS


def _is_filled(parameter: str) -> bool:
    """Whether a parameter gets a value whatever columns the data has."""
    return parameter in COMPUTED or _is_target(parameter)


def _singular(name: str) -> str:
    return name[:-1] if name.endswith("s") else name


def _function_of(reward: Any) -> Any:
    return reward.func if isinstance(reward, functools.partial) else reward


def _name_of(reward: Any) -> str:
    function = _function_of(reward)
    return str(getattr(function, "__name__", type(function).__name__))


def _is_async(reward: Any) -> bool:
    function = _function_of(reward)
    return inspect.iscoroutinefunction(function) or (
        callable(function) and inspect.iscoroutinefunction(type(function).__call__)
    )


def _annotated_form(parameters: Mapping[str, inspect.Parameter]) -> str | None:
    """Whether its completions are messages or texts, as their annotation says; None if it does not say so."""
    for name in {"completion", "completions"} & parameters.keys():
        annotation = str(parameters[name].annotation)
        if re.search("dict|message", annotation, re.IGNORECASE):
            return "messages"
        if re.search(r"\bstr\b", annotation):
            return "texts"
    return None


def _array(pictures: Sequence[Any]) -> Any:
    """Pictures as numbers from 0 to 255: [B, H, W, 3], or a list of [H, W, 3] where their sizes differ."""
    import numpy  # which the reward uses already

    arrays = [numpy.array(picture.convert("RGB")) for picture in pictures]
    return numpy.stack(arrays) if len({each.shape for each in arrays}) == 1 else arrays


def _of_call(samples: Sequence[Any]) -> dict[str, Any]:
    """What is the same for all samples; `global_step` counts from 0, and is 0 in an evaluation."""
    step = samples[0].info.get("training_step", 1) - 1
    return {"trainer_state": SimpleNamespace(global_step=step), "log_extra": _ignore, "log_metric": _ignore}


def _ignore(*_: Any, **__: Any) -> None:
    """Logs nothing."""


def _score(value: Any) -> Any:
    """A score as a number where it is None, or verl's mapping."""
    if isinstance(value, Mapping) and "score" in value:
        value = value["score"]
    return math.nan if value is None else value


def _what_is_missing(reward: str, name: str, samples: Sequence[Any]) -> str:
    if name == "completion_ids":
        return f"{reward} takes completion_ids, and this policy does not tell them: Sample.info has no 'token_ids'."
    columns = ", ".join(dict.fromkeys(key for sample in samples for key in sample.prompt.meta)) or "none"
    remedy = "map one to it with data.columns.target" if name in _TARGETS else f"set {name} beside `use`"
    return (
        f"{reward} takes the column '{name}', which no prompt has; their columns are: {columns}. Rename one, or "
        f"{remedy}."
    )


def _awaited(values: list[Any]) -> list[Any]:
    """The results of coroutines, which run together; any other values as they are."""
    if not any(map(inspect.isawaitable, values)):
        return values

    async def together() -> list[tuple[Any, BaseException | None]]:
        return await asyncio.gather(*map(_outcome, values))

    future = asyncio.run_coroutine_threadsafe(together(), _loop(os.getpid()))
    try:
        outcomes = future.result()
    finally:
        future.cancel()  # where Ctrl-C ends the wait
    for _, error in outcomes:
        if error is not None:
            raise error
    return [result for result, _ in outcomes]


async def _outcome(value: Awaitable[Any]) -> tuple[Any, BaseException | None]:
    """A result or an error; even an exit must not end the event loop."""
    try:
        return await value, None
    except BaseException as error:
        return None, error


@functools.lru_cache(maxsize=None)
def _loop(process: int) -> asyncio.AbstractEventLoop:
    """A process's event loop, in a thread of its own: a notebook has one, too, and clients may keep connections."""
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    return loop
