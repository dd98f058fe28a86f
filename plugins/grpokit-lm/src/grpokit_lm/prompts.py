"""From a prompt to what a model reads, by the model's chat template or as plain text.

A prompt that is too long is refused, never cut: a cut question is another question, and nobody sees it in a report.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from copy import copy
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, PreTrainedConfig

from grpokit import Prompt, UsageError
from grpokit.data import refuse_pictures
from grpokit.errors import brief, nearest, one_line, plural
from grpokit.files import read_text
from grpokit.settings import Settings, Total
from grpokit_hf.tokens.reserved import OwnTokens, most_tokens
from grpokit_lm.loading import Loaded
from grpokit_lm.messages import Template, checked_messages
from grpokit_lm.pictures import PictureReader, Reading, placeholders, positions

_SET_HERE = {"messages", "conversation", "chat_template", "tokenize", "add_generation_prompt", "continue_final_message"}


@dataclass(frozen=True, kw_only=True)
class PromptSettings(Settings):
    """How the model reads a prompt, and rewards a completion.

    Attributes:
        max_new_tokens: the most tokens of a completion, its end token included. With a world, all tokens behind the
            prompt count, those of the world too.
        max_prompt_tokens: the most tokens of a prompt; None for what the context leaves.
        system: a message that goes before each prompt's own.
        chat: whether prompts go through the chat template; None: where there is one.
        template_options: further variables of the template, such as {"enable_thinking": False}.
        prepend: a text that rewards see before each completion, such as "<think>\\n" where the template has begun it.
    """

    max_new_tokens: Total = 256
    max_prompt_tokens: Total | None = None
    system: str | None = None
    chat: bool | None = None
    template_options: Mapping[str, Any] | None = None
    prepend: str | None = None

    def check_together(self) -> None:
        """Refuse options of the template that it does not take from a config.

        Raises:
            UsageError: with what to write.
        """
        for name in _SET_HERE & set(self.template_options or ()):
            raise UsageError(f"template_options: '{name}' is not a variable for a config: hf-lm sets it. Leave it out.")


@dataclass(frozen=True, kw_only=True)
class PromptEncoder(PromptSettings):
    """Turns prompts into tokens, and their pictures into what the model needs.

    Attributes:
        loaded: the model, for its tokenizer, processor and context.
    """

    loaded: Loaded

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.chat and not self._has_template:
            raise UsageError(f"chat: true needs a chat template, and {_NO_TEMPLATE}")
        if self.system is not None and not self.chats:
            why = _CHAT_IS_FALSE if self.chat is False else _NO_TEMPLATE
            raise UsageError(f"A system prompt needs a chat template, and {why}")
        if self._context is not None and self.max_new_tokens >= self._context:
            raise UsageError(
                f"max_new_tokens={self.max_new_tokens:,} leaves no room for a prompt: the context of the model "
                f"'{self.loaded.name}' is {plural(self._context, 'token')}{_why(self.loaded.model.config)}."
            )

    @cached_property
    def pictures(self) -> PictureReader | None:
        """Reads pictures; None for a model that reads text only, or whose processor has no placeholder for one."""
        processor = self.loaded.processor
        return PictureReader(processor, self.loaded.model) if hasattr(processor, "image_token") else None

    def encode(self, prompt: Prompt) -> Reading:
        """What the model reads of a prompt, on the CPU.

        Raises:
            UsageError: the prompt cannot be read, is empty, or is too long.
        """
        if self.pictures is None or not prompt.images:
            reading = Reading(tokens=torch.tensor(self._tokens([prompt])[0]))
            if self.pictures is not None:
                reading = replace(reading, positions=positions(self.loaded.model, reading))
        else:
            text = self.text(prompt)
            reading = self.pictures.read(text, prompt.images, special=self._special(text, prompt))
        self._check_tokens(reading.tokens.tolist(), prompt)
        self.check_length(len(reading.tokens), prompt)
        return reading

    def _tokens(self, prompts: Sequence[Prompt]) -> list[list[int]]:
        """The tokens of each prompt's text, with a single one for each picture."""
        tokenizer: Any = self.loaded.tokenizer
        texts = [self.text(prompt) for prompt in prompts]
        specials = [self._special(text, prompt) for text, prompt in zip(texts, prompts, strict=True)]
        tokens: dict[int, list[int]] = {}
        for special in set(specials):
            places = [place for place, own in enumerate(specials) if own == special]
            read = tokenizer([texts[place] for place in places], add_special_tokens=special, verbose=False)
            tokens |= dict(zip(places, read["input_ids"], strict=True))
        if not all(tokens.values()) and tokenizer.bos_token_id is None:
            raise UsageError("The prompt is empty, and the tokenizer has no token to begin a text with.")
        return [tokens[place] or [tokenizer.bos_token_id] for place in range(len(texts))]

    def text(self, prompt: Prompt) -> str:
        """The prompt as the model's template writes it; its plain text where no template is used.

        Raises:
            UsageError: the prompt has messages and there is no template, the template refuses them, or pictures and
                placeholders do not agree.
        """
        if self.pictures is None:
            refuse_pictures(
                [prompt],
                f"the model '{self.loaded.name}' has no processor, so it",
                otherwise="A vision-language model reads pictures; a model object needs its processor as tokenizer.",
            )
        if _has_messages(prompt):
            messages = checked_messages(prompt.meta["messages"], sees=self.pictures is not None)
            if self.chat is False or not self._has_template:
                why = _CHAT_IS_FALSE if self.chat is False else _NO_TEMPLATE
                raise UsageError(f"The prompt {brief(prompt.text)} consists of messages, and {why}")
        elif self.chats:
            parts = [*[{"type": "image"}] * len(prompt.images), {"type": "text", "text": prompt.text}]
            messages = [{"role": "user", "content": parts}]
        else:
            self._check_placeholders([{"content": prompt.text}], prompt)
            return _writable(prompt.text)
        self._check_placeholders(messages, prompt)
        if self.system is not None and messages[0]["role"] not in ("system", "developer"):
            messages = [{"role": "system", "content": self.system}, *messages]
        for message in messages:
            for part in _texts(message["content"]):
                self._frame.refuse(part, remedy="Take it out; prompts that are written out in full want chat: false.")
        try:
            written = self._template.write(messages)
        except Exception as error:  # a template is a program, and may fail in any way
            raise UsageError(
                f"The chat template refuses the prompt {brief(prompt.text)}: {one_line(error)}."
            ) from error
        return _writable(written)

    def messages(self, message: Any) -> list[dict[str, Any]]:
        """A world's message as a list of checked ones; a text is a user's.

        Raises:
            UsageError: it has another form, a picture, a token of the template, or needs a template that is not there.
        """
        if not isinstance(message, str) and not self.chats:
            why = _CHAT_IS_FALSE if self.chat is False else _NO_TEMPLATE
            raise UsageError(f"Without a chat template a message is a text, got {brief(message)}; {why}")
        if isinstance(message, str):
            message = {"role": "user", "content": message}
        checked = checked_messages([message] if isinstance(message, Mapping) else message, sees=False)
        for part in (part for each in checked for part in _texts(each["content"])):
            self._frame.refuse(part, remedy="Take it out.")
        return checked

    def escaped(self, text: str) -> str:
        """A text without the tokens of the template."""
        return self._frame.escaped(text)

    def between(self, messages: Sequence[Mapping[str, Any]], last: int) -> list[int]:
        """The tokens from the end of an answer, through these messages, to where the model goes on.

        The template writes a conversation whose answer is a mark, and what stands behind the mark counts. So it does
        not matter how it would write the model's own turns, such as whether it drops their thoughts.

        Args:
            messages: as of `messages`.
            last: the token that ended the answer. The template's own token for the end is left out if it is that.

        Raises:
            UsageError: the template refuses the messages, or does not write the answer before them.
        """
        tokenizer: Any = self.loaded.tokenizer
        if not self.chats:
            text = str(messages[0]["content"])
        else:
            before = [{"role": "user", "content": "probe"}, {"role": "assistant", "content": _MARK}]
            try:
                written = self._template.write([*before, *messages])
            except Exception as error:  # a template is a program, and may fail in any way
                raise UsageError(
                    f"The chat template refuses the messages {brief(messages)}: {one_line(error)}."
                ) from error
            _, mark, text = written.partition(_MARK)
            if not mark:
                raise UsageError(f"The chat template does not write an answer before the messages {brief(messages)}.")
        tokens: list[int] = tokenizer(_writable(text), add_special_tokens=False, verbose=False)["input_ids"]
        return tokens[1:] if tokens[:1] == [last] else tokens

    def check_tools(self) -> None:
        """Refuse tools that the template does not show to the model.

        Raises:
            UsageError: there is no template, or it writes the same without the tools.
        """
        if not self.chats:
            why = _CHAT_IS_FALSE if self.chat is False else _NO_TEMPLATE
            raise UsageError(f"The world has tools, which a chat template shows to the model; {why}")
        probe = [{"role": "user", "content": "probe"}]
        bare = {key: value for key, value in (self.template_options or {}).items() if key != "tools"}
        if self._template.write(probe) == replace(self._template, options=bare).write(probe):
            raise UsageError(
                "The world has tools, and the model's chat template does not write them, so the model would not know "
                "of them. Give one that does as chat_template, or use a model that was trained with tools."
            )

    def check(self, prompts: Sequence[Prompt]) -> None:
        """Refuse prompts that cannot be read or are too long.

        Raises:
            UsageError: says what is wrong with the first of them.
        """
        prompts = [prompt for prompt in prompts if not self._is_short(prompt)]
        for prompt, tokens in zip(prompts, self._tokens(prompts), strict=True):
            further = self.pictures.further_tokens(prompt.images) if self.pictures is not None else 0
            self._check_tokens(tokens, prompt)
            self.check_length(len(tokens) + further, prompt)

    def _is_short(self, prompt: Prompt) -> bool:
        """Whether a prompt needs no closer look: a plain text that fits even if each of its bytes is a token."""
        plain = self._begins.isdisjoint(prompt.text) and not (prompt.images or _has_messages(prompt))
        if not plain or self.pictures is not None:
            return False
        most = most_tokens(prompt.text) + self._around
        return math.isfinite(most) and all(bound is None or most <= bound for bound in self._bounds)

    @cached_property
    def _begins(self) -> frozenset[str]:
        """What added tokens begin with."""
        tokenizer: Any = self.loaded.tokenizer
        return frozenset(str(token)[:1] for token in tokenizer.added_tokens_decoder.values())

    @cached_property
    def _around(self) -> float:
        """The most tokens around a text."""
        try:
            return len(self.text(Prompt(text="x")).encode()) + 8
        except UsageError:  # which each prompt is to say of itself
            return math.inf

    @property
    def _bounds(self) -> tuple[int | None, int | None]:
        """The most tokens of a prompt: as the user and as the context allows."""
        return self.max_prompt_tokens, self._context and self._context - self.max_new_tokens

    def check_length(self, tokens: int, prompt: Prompt) -> None:
        """Refuse a prompt of too many tokens.

        Args:
            tokens: what it has, those of its pictures included.
            prompt: for the message.

        Raises:
            UsageError: it is longer than `max_prompt_tokens`, or than what the context leaves.
        """
        if all(bound is None or tokens <= bound for bound in self._bounds):
            return
        with_pictures = f" with its {plural(len(prompt.images), 'picture')}" if prompt.images else ""
        has = f"The prompt {brief(prompt.text, most=60)} has {plural(tokens, 'token')}{with_pictures}"
        remedy = "Make its pictures smaller, shorten it" if prompt.images else "Shorten it"
        if self.max_prompt_tokens is not None and tokens > self.max_prompt_tokens:
            most = f"max_prompt_tokens={self.max_prompt_tokens:,}"
            raise UsageError(f"{has}, more than {most}. {remedy} or leave the prompt out.")
        raise UsageError(
            f"{has}, but the model's context of {plural(self._context or 0, 'token')} less max_new_tokens="
            f"{self.max_new_tokens:,} leaves {self._bounds[1]:,}{_why(self.loaded.model.config)}. {remedy} or lower "
            "max_new_tokens."
        )

    @cached_property
    def _context(self) -> int | None:
        return context_of(self.loaded.model.config)

    @cached_property
    def _template(self) -> Template:
        placeholder = None if self.pictures is None else self.pictures.placeholder
        return Template(holder=templating(self.loaded), options=self.template_options or {}, placeholder=placeholder)

    @cached_property
    def sample(self) -> str:
        """What the template writes of a conversation, up to an answer; empty without a template that can."""
        turns = [{"role": role, "content": "probe"} for role in ("system", "user", "assistant", "user")]
        for start in (0, 1, 3) if self._has_template else ():
            with suppress(Exception):  # a template is a program, and may fail in any way
                return self._template.write(turns[start:])
        return ""

    @cached_property
    def frame(self) -> frozenset[int]:
        """The special tokens around texts: end, beginning, padding, and the template's, but for tags in pairs.

        `<think>` and `</think>` are a part of the answer, also where the template begins it.
        """
        tokenizer: Any = self.loaded.tokenizer
        special = {str(t): i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        paired = {name for tag in special for name in (tag, tag.replace("<", "</", 1)) if f"</{tag[1:]}" in special}
        written = {i for name, i in special.items() if name in self.sample and name not in paired}
        ends = set(end_tokens(self.loaded, self.loaded.model.generation_config)) & set(special.values())
        return frozenset(
            written | ends | {tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id} - {None}
        )

    @property
    def begun(self) -> str:
        """The tag with which the template begins an answer, such as `<think>` and a line break; empty without one."""
        tag = re.search(r"<([A-Za-z_]+)>\s*\Z", self.sample) if self.chats else None
        vocabulary = self.loaded.tokenizer.get_vocab()
        return "" if tag is None or vocabulary.get(tag[0].strip()) in self.frame else tag[0]

    def completion(self, tokens: Sequence[int]) -> str:
        """What rewards see of a completion: all but the tokens that frame it (`frame`)."""
        written = self.loaded.tokenizer.decode([token for token in tokens if token not in self.frame])
        return (self.prepend or "") + str(written)

    @cached_property
    def _frame(self) -> OwnTokens:
        return OwnTokens(self.loaded.tokenizer, self.frame)

    @property
    def _has_template(self) -> bool:
        return bool(templating(self.loaded).chat_template)

    @property
    def chats(self) -> bool:
        """Whether a prompt's text goes through the chat template."""
        return self._has_template if self.chat is None else self.chat

    def _special(self, text: str, prompt: Prompt) -> bool:
        """Whether the tokenizer's special tokens go around a text, as they do in `apply_chat_template` of transformers.

        That of a tokenizer adds none. That of a processor does what the processor does with any text, unless the
        template has written the token that begins a text: LLaVA-1.5's has not.
        """
        templated = self.chats or _has_messages(prompt)
        begin = self.loaded.tokenizer.bos_token
        if templated and (self.loaded.processor is None or (begin and text.startswith(str(begin)))):
            return False
        return self.pictures is None or self.pictures.special

    def _check_tokens(self, tokens: Sequence[int], prompt: Prompt) -> None:
        """Refuse two beginnings, and added tokens that the model has no embedding of; see `_check_vocabulary`."""
        begin = self.loaded.tokenizer.bos_token_id
        if begin is not None and [*tokens[:2]] == [begin, begin]:
            raise UsageError(
                f"The prompt {brief(prompt.text, most=60)} begins with {self.loaded.tokenizer.bos_token!r}, and the "
                "tokenizer puts another one before it. Take it out of the prompt or of its template."
            )
        rows = _rows(self.loaded)
        if max(tokens) >= rows:
            token = self.loaded.tokenizer.convert_ids_to_tokens(max(tokens))
            raise UsageError(
                f"The prompt {brief(prompt.text, most=60)} has the token {token!r} with the id {max(tokens):,}, but "
                f"the model '{self.loaded.name}' knows {rows:,} tokens. Leave it out of the prompt or of its template."
            )

    def _check_placeholders(self, messages: Sequence[Mapping[str, Any]], prompt: Prompt) -> None:
        if self.pictures is None:
            return
        asked, images = placeholders(messages, self.pictures.placeholder), len(prompt.images)
        if asked != images:
            raise UsageError(
                f"The prompt {brief(prompt.text, most=60)} has {plural(asked, 'image placeholder')} and "
                f"{plural(images, 'picture')}. A placeholder is an image part of its messages, or "
                f"'{self.pictures.placeholder}' in its text; pictures are its `image` or `images`."
            )


_MARK = "An answer of the model"
_CHAT_IS_FALSE = "chat is false. Leave chat out."
_NO_TEMPLATE = (
    "the tokenizer has no chat template. Give one as chat_template (a file or its text), or write the prompts as plain "
    "text."
)


def context_of(config: PreTrainedConfig) -> int | None:
    """How many tokens a model reads at once, or None where it sets no bound.

    LongRoPE (Ding et al. 2024, arXiv:2402.13753) has one set of frequencies for short texts and another for long ones.
    Tokens that were written while a text was short would be scored with those of the long text, and batch-mates of a
    long text, too. So its context here is that of the short ones.
    """
    text: Any = config.get_text_config()
    bounds = [getattr(text, "max_position_embeddings", None)]
    if _is_longrope(config):
        bounds.append(text.rope_parameters.get("original_max_position_embeddings"))
    return min((int(bound) for bound in bounds if bound), default=None)


def _is_longrope(config: PreTrainedConfig) -> bool:
    rope = getattr(config.get_text_config(), "rope_parameters", None) or {}
    return bool(rope.get("rope_type") == "longrope")


def _why(config: PreTrainedConfig) -> str:
    return " (up to there LongRoPE keeps its frequencies, and log-probs their meaning)" if _is_longrope(config) else ""


def with_template(loaded: Loaded, template: str | Path) -> Loaded:
    """The same with another chat template; tokenizer or processor are copied, since they may be another policy's, too.

    Args:
        loaded: a model.
        template: its text, or the path of a file.

    Raises:
        UsageError: the file cannot be read.
    """
    changed = copy(templating(loaded))
    changed.chat_template = _template_text(template)
    return replace(loaded, **{"tokenizer" if loaded.processor is None else "processor": changed})


def templating(loaded: Loaded) -> Any:
    """What holds the chat template: a vision-language model's processor, or the tokenizer."""
    return loaded.tokenizer if loaded.processor is None else loaded.processor


def end_tokens(
    loaded: Loaded, generation: GenerationConfig | None, further: Sequence[str | int] = ()
) -> tuple[int, ...]:
    """The ids that end a completion: the tokenizer's end token, those of the generation config, and further ones.

    A chat model often has two: the end of a message and the end of a text.

    Args:
        loaded: the model.
        generation: its generation config.
        further: tokens as text or as ids.

    Raises:
        UsageError: the tokenizer or the model does not know a token.
    """
    tokenizer: Any = loaded.tokenizer
    configured = None if generation is None else generation.eos_token_id
    ids = {tokenizer.eos_token_id, *(configured if isinstance(configured, list) else [configured])} - {None}
    vocabulary, rows = tokenizer.get_vocab(), _rows(loaded)
    if tokenizer.eos_token_id is not None and tokenizer.eos_token_id >= rows:
        raise UsageError(
            f"The tokenizer's end token {tokenizer.eos_token!r} has the id {tokenizer.eos_token_id:,}, but the model "
            f"'{loaded.name}' knows {rows:,} tokens and can never write it. Name the model's own tokenizer."
        )
    for token in further:
        if isinstance(token, bool) or not isinstance(token, (str, int)):
            raise UsageError(f"stop_tokens must hold tokens as texts or whole numbers, got {brief(token)}.")
        number = vocabulary.get(token) if isinstance(token, str) else token
        if number is None or not 0 <= number < rows:
            specials = [str(each) for each in tokenizer.all_special_tokens]
            raise UsageError(
                f"stop_tokens: the tokenizer has no token {token!r}{nearest(str(token), specials)}. Its special ones: "
                f"{', '.join(specials) or 'none'}. For a text of several tokens use stop."
            )
        ids.add(int(number))
    return tuple(sorted(ids))


def _rows(loaded: Loaded) -> int:
    """How many tokens a model knows."""
    embeddings: Any = loaded.model.get_input_embeddings()
    return int(embeddings.weight.shape[0])


def _template_text(template: str | Path) -> str:
    """A template's text; what has neither braces nor line breaks is a path."""
    text = str(template)
    if isinstance(template, str) and ("{" in text or "\n" in text):
        return text
    return read_text(Path(text).expanduser(), kind="chat template", error=UsageError)


def _texts(content: Any) -> list[str]:
    """The texts of a message's content."""
    if isinstance(content, str):
        return [content]
    return [part["text"] for part in content or () if part["type"] == "text"]


def _has_messages(prompt: Prompt) -> bool:
    """Whether a prompt is a conversation; a data set's column holds null where there is none."""
    return prompt.meta.get("messages") is not None


def _writable(text: str) -> str:
    """A text that a tokenizer can read."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        what = brief(text, most=60)
        raise UsageError(f"The prompt {what} has an unpaired surrogate, which no tokenizer reads.") from error
    return text
