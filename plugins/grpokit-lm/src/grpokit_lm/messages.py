"""Conversations: checked, and written by a model's chat template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from grpokit import UsageError
from grpokit.errors import a_type, brief, nearest

_ROLES = ("system", "user", "assistant", "tool", "developer")


@dataclass(frozen=True, kw_only=True)
class Template:
    """A chat template, which turns messages into a text.

    Attributes:
        holder: the tokenizer or processor that has it.
        options: further variables.
        placeholder: the text that stands for a picture; None for a model that reads text only.
    """

    holder: Any
    options: Mapping[str, Any]
    placeholder: str | None

    def write(self, messages: Sequence[Mapping[str, Any]]) -> str:
        """The text of checked messages, up to where the model goes on; raises what the template raises."""
        return self._written([{**message, "content": self._content(message["content"])} for message in messages])

    @cached_property
    def _forms(self) -> tuple[bool, bool]:
        """Whether contents may be texts, and whether they may be lists of parts.

        Many templates know one form only. Of the other they print nothing, or the list as Python writes it.
        """
        return self._prints("probe"), self._prints([{"type": "text", "text": "probe"}])

    def _prints(self, content: Any) -> bool:
        """Whether a content comes out as it should."""
        try:
            written = self._written([{"role": "user", "content": content}])
        except Exception:  # a template is a program, and may fail in any way
            return False
        return "probe" in written and "'probe'" not in written

    def _content(self, content: Any) -> Any:
        """A message's content in a form that the template takes.

        If it takes both or none, a text stays a text, since some write a system message in that form only, and a model
        that sees gets parts.
        """
        texts, lists = self._forms
        if content is None or (texts and isinstance(content, str)):
            return content
        parts = [{"type": "text", "text": content}] if isinstance(content, str) else [dict(part) for part in content]
        if lists if texts != lists else self.placeholder is not None:
            return parts
        return "".join(part["text"] if part["type"] == "text" else str(self.placeholder) for part in parts)

    def _written(self, messages: Sequence[Mapping[str, Any]]) -> str:
        begun = messages[-1]["role"] == "assistant"  # the model goes on with an answer that the prompt begins
        written: str = self.holder.apply_chat_template(
            messages,
            tokenize=False,
            add_generation_prompt=not begun,
            continue_final_message=begun,
            **self.options,
        )
        return written


def checked_messages(messages: Any, *, sees: bool) -> list[dict[str, Any]]:
    """The messages of a prompt.

    Args:
        messages: what a prompt gives as such.
        sees: whether the model reads pictures.

    Raises:
        UsageError: says which message is wrong, and why.
    """
    if not isinstance(messages, (list, tuple)) or not messages:
        raise UsageError(
            'messages must be a list such as [{"role": "user", "content": "Hello"}], got '
            f"{a_type(messages) if not isinstance(messages, (list, tuple)) else 'an empty one'}."
        )
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not {"role", "content"} <= set(message):
            raise UsageError(f"Message {number} needs the keys role and content, got {brief(message)}.")
        if message["role"] not in _ROLES:
            raise UsageError(
                f"Message {number} has the role {brief(message['role'])}{nearest(str(message['role']), _ROLES)}; "
                f"expected one of {', '.join(_ROLES)}."
            )
        _check_content(message, number, sees=sees)
    return [dict(message) for message in messages]


def _check_content(message: Mapping[str, Any], number: int, *, sees: bool) -> None:
    """Templates print nothing, in silence, of a content that has another form than they expect."""
    content = message["content"]
    if isinstance(content, str) or (content is None and message["role"] == "assistant"):  # which only calls a tool
        return
    if not (isinstance(content, (list, tuple)) and content and all(map(_is_part, content))):
        raise UsageError(
            f"Message {number} needs a text as content, or a list of parts such as "
            f'{{"type": "text", "text": "Hello"}}; got {brief(content)}.'
        )
    for part in content:
        if part["type"] not in (("text", "image") if sees else ("text",)):
            reads = 'text and pictures, as {"type": "image"}' if sees else "text only"
            raise UsageError(f"Message {number} has a part of type '{part['type']}'. The model reads {reads}.")


def _is_part(part: Any) -> bool:
    if not isinstance(part, Mapping) or "type" not in part:
        return False
    return part["type"] != "text" or isinstance(part.get("text"), str)
