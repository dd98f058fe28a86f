"""Prompts become the tokens that a hand-written template gives, or one message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from tiny_models import CONTEXT, EOS, tiny_model, tiny_tokenizer
from transformers import GenerationConfig

from grpokit import Prompt, UsageError
from grpokit_lm.loading import LoadSettings, load_model
from grpokit_lm.messages import Template
from grpokit_lm.prompts import PromptEncoder, end_tokens, with_template

MESSAGES = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "ho"}, {"role": "user", "content": "?"}]
STRICT = (
    "{% if messages[0]['role'] == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}"
    "{{ messages[-1]['content'] }}{% if shout %}!{% endif %}"
)


def encoder(*, tokenizer: dict[str, Any] | None = None, chat_template: Any = None, **settings: Any) -> PromptEncoder:
    loaded = load_model(tiny_model("llama"), LoadSettings(tokenizer=tiny_tokenizer(**(tokenizer or {}))))
    if chat_template is not None:
        loaded = with_template(loaded, chat_template)
    return PromptEncoder(loaded=loaded, **({"max_new_tokens": 28} | settings))


@pytest.mark.parametrize(
    ("settings", "prompt", "text"),
    [
        ({}, Prompt(text="hi"), "<user>hi<eos><assistant>"),
        ({"chat": False}, Prompt(text="hi"), "hi"),
        ({"tokenizer": {"chat": False}}, Prompt(text="hi"), "hi"),
        ({"system": "Be brief."}, Prompt(text="hi"), "<system>Be brief.<eos><user>hi<eos><assistant>"),
        (
            {"system": "Be brief."},
            Prompt(text="", meta={"messages": MESSAGES}),
            "<system>Be brief.<eos><user>hi<eos><assistant>ho<eos><user>?<eos><assistant>",
        ),
        (
            {"system": "Be brief."},
            Prompt(text="", meta={"messages": [{"role": "system", "content": "Own."}, MESSAGES[0]]}),
            "<system>Own.<eos><user>hi<eos><assistant>",
        ),
        ({}, Prompt(text="", meta={"messages": MESSAGES[:2]}), "<user>hi<eos><assistant>ho"),
        ({}, Prompt(text="hi", meta={"messages": None}), "<user>hi<eos><assistant>"),
        ({"chat_template": STRICT, "template_options": {"shout": True}}, Prompt(text="hi"), "hi!"),
    ],
)
def test_the_text_that_a_model_reads(settings: dict[str, Any], prompt: Prompt, text: str) -> None:
    assert encoder(**settings).text(prompt) == text


def test_tokens_of_a_template_get_no_second_beginning() -> None:
    begins = {"begins": True}
    templated, plain = encoder(tokenizer=begins), encoder(tokenizer=begins, chat=False)
    ids: Any = templated.loaded.tokenizer.convert_tokens_to_ids
    assert templated.encode(Prompt(text="hi")).tokens.tolist() == ids(["<user>", "h", "i", "<eos>", "<assistant>"])
    assert plain.encode(Prompt(text="hi")).tokens.tolist() == ids(["<bos>", "h", "i"])
    assert encoder(chat=False).encode(Prompt(text="")).tokens.tolist() == ids(["<bos>"])
    for read in (plain.encode, lambda prompt: plain.check([prompt])):
        with pytest.raises(
            UsageError, match="'<bos>hi' begins with '<bos>', and the tokenizer puts another one before"
        ):
            read(Prompt(text="<bos>hi"))


def test_a_prompt_that_is_written_out_in_full_is_read_as_it_stands() -> None:
    whole = Prompt(text="<user>hi<eos><assistant>")
    templated, plain = encoder(), encoder(chat=False)
    assert plain.encode(whole).tokens.tolist() == templated.encode(Prompt(text="hi")).tokens.tolist()
    with pytest.raises(UsageError, match=r"has '<user>' in its text, .* Take it out; .* want chat: false"):
        templated.check([whole])
    templated.check([Prompt(text="Answer in <think> and <image"), Prompt(text="a < b")])


TEXTS = "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] | trim }}{% endfor %}"
PARTS = (
    "{% for m in messages %}<{{ m['role'] }}>"
    "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{{ p['text'] }}{% endfor %}{% endfor %}"
)


@pytest.mark.parametrize("template", [TEXTS, PARTS])
@pytest.mark.parametrize(
    "content", ["Hello", [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]], ids=type
)
def test_a_template_of_one_form_prints_contents_of_either(template: str, content: Any) -> None:
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": content}]
    chat = encoder(chat_template=template, system="Go.")
    for _ in range(2):  # transformers 5.17 marks the last text of an answer that goes on, in place
        assert chat.text(Prompt(text="", meta={"messages": messages})) == "<system>Go.<user>Hello<assistant>Hello"
    assert chat.text(Prompt(text="Hello")) == "<system>Go.<user>Hello"


def test_a_text_stays_a_text_where_the_template_takes_it() -> None:
    """Llama 3.2 Vision's takes both forms of a user, and a text only of the system."""
    user = "{% if m['content'] is string %}{{ m['content'] }}{% else %}{{ m['content'][0]['text'] }}{% endif %}"
    system = "{% if m['role'] == 'system' %}{{ m['content'] | trim }};{% else %}"
    loaded = load_model(tiny_model("llama"), LoadSettings(tokenizer=tiny_tokenizer(chat=False)))
    changed = with_template(loaded, "{% for m in messages %}" + system + user + "{% endif %}{% endfor %}")
    messages = [{"role": "system", "content": "Go."}, {"role": "user", "content": "Hi"}]
    for placeholder in (None, "<image>"):
        assert Template(holder=changed.tokenizer, options={}, placeholder=placeholder).write(messages) == "Go.;Hi"


def test_a_template_is_set_in_a_copy() -> None:
    tokenizer = tiny_tokenizer(chat=False)
    loaded = load_model(tiny_model("llama"), LoadSettings(tokenizer=tokenizer))
    assert with_template(loaded, STRICT).tokenizer.chat_template == STRICT
    assert tokenizer.chat_template is None
    assert loaded.tokenizer is tokenizer


def test_a_template_from_a_file(tmp_path: Path) -> None:
    (tmp_path / "chat.jinja").write_text(STRICT)
    assert encoder(chat_template=tmp_path / "chat.jinja").text(Prompt(text="hi")) == "hi"
    with pytest.raises(UsageError, match=r"The chat template .*absent\.jinja does not exist"):
        encoder(chat_template=str(tmp_path / "absent.jinja"))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"tokenizer": {"chat": False}, "chat": True}, "chat: true needs a chat template, and the tokenizer has no"),
        (
            {"tokenizer": {"chat": False}, "system": "x"},
            "A system prompt needs a chat template, .* Give one as chat_te",
        ),
        (
            {"chat": False, "system": "x"},
            r"A system prompt needs a chat template, and chat is false\. Leave chat out\.",
        ),
        ({"max_new_tokens": CONTEXT}, "max_new_tokens=128 leaves no room for a prompt: .* is 128 tokens"),
        ({"max_prompt_tokens": 0}, "max_prompt_tokens must be at least 1, or None, got 0"),
        ({"template_options": {"tokenize": True}}, "template_options: 'tokenize' is not a variable for a config"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        encoder(**settings)


@pytest.mark.parametrize(
    ("settings", "prompt", "words"),
    [
        ({"tokenizer": {"chat": False}}, {"messages": MESSAGES}, "consists of messages, and the tokenizer has no chat"),
        ({"chat": False}, {"messages": MESSAGES}, "consists of messages, and chat is false"),
        (
            {"chat_template": STRICT, "system": "x"},
            {},
            "The chat template refuses the prompt 'hi': System role not sup",
        ),
        ({"chat_template": "{{ 1 / 0 }}"}, {}, "The chat template refuses the prompt 'hi': division by zero"),
        ({}, {"messages": [{"role": "user", "content": None}]}, "Message 1 needs a text as content, .* got nothing"),
        ({}, {"messages": [{"role": "user", "content": ["hi"]}]}, "needs a text as content, .* got a list of 1"),
        ({}, {"messages": [{"role": "user", "content": {"text": "hi"}}]}, r"needs a text .* got keys \(text\)"),
        (
            {},
            {"messages": [{"role": "user", "content": [{"type": "image"}]}]},
            "Message 1 has a part of type 'image'. The model reads text only",
        ),
        (
            {},
            {"messages": [{"role": "user", "content": [{"type": "txt", "text": "hi"}]}]},
            "Message 1 has a part of type 'txt'. The model reads text only",
        ),
        (
            {},
            {"messages": [{"role": "user", "content": [{"type": "text"}]}]},
            "needs a text as content, .* a list of 1",
        ),
        ({}, {"messages": [{"role": "user", "content": "\ud800"}]}, "has an unpaired surrogate"),
        (
            {},
            {"messages": [{"role": "user", "content": "a<eos><assistant>b"}]},
            "has '<eos>' in its text, which is a tok",
        ),
        ({}, {"messages": [{"role": "user", "content": [{"type": "text", "text": "<user>"}]}]}, "has '<user>' in its"),
        ({"system": "<bos>Be brief."}, {}, "The prompt '<bos>Be brief.' has '<bos>' in its text"),
        ({}, {"messages": "hi"}, "messages must be a list such as .* got a str"),
        ({}, {"messages": []}, "got an empty one"),
        ({}, {"messages": [{"role": "user"}]}, r"Message 1 needs the keys role and content, got keys \(role\)"),
        ({}, {"messages": [{"role": "usr", "content": ""}]}, r"has the role 'usr' \(did you mean 'user'\?\)"),
    ],
)
def test_prompts_that_cannot_be_read(settings: dict[str, Any], prompt: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError, match=words):
        encoder(**settings).check([Prompt(text="hi", meta=prompt)])


@pytest.mark.parametrize(
    ("letters", "settings", "words"),
    [
        (100, {}, ""),
        (
            101,
            {},
            "has 101 tokens, but the model's context of 128 tokens less max_new_tokens=28 leaves 100. Shorten it",
        ),
        (20, {"max_prompt_tokens": 20}, ""),
        (21, {"max_prompt_tokens": 20}, "has 21 tokens, more than max_prompt_tokens=20"),
    ],
)
def test_the_longest_prompt(letters: int, settings: dict[str, Any], words: str) -> None:
    prompts = [Prompt(text="x"), Prompt(text="y" * letters)]
    plain = encoder(chat=False, **settings)
    if not words:
        plain.check(prompts)
        return
    with pytest.raises(UsageError, match=f"The prompt 'yyy.* {words}"):
        plain.check(prompts)


def test_the_context_of_longrope_ends_where_its_frequencies_change() -> None:
    rope = {"rope_type": "longrope", "rope_theta": 1e4, "long_factor": [4.0] * 2, "short_factor": [1.0] * 2}
    model = tiny_model("phi3", rope_parameters=rope, original_max_position_embeddings=64)
    loaded = load_model(model, LoadSettings(tokenizer=tiny_tokenizer()))
    encoder = PromptEncoder(loaded=loaded, max_new_tokens=14, chat=False)
    encoder.check([Prompt(text="y" * 50)])
    with pytest.raises(UsageError, match=r"context of 64 tokens less .* leaves 50 \(up to there LongRoPE keeps"):
        encoder.check([Prompt(text="y" * 51)])


def test_end_tokens() -> None:
    loaded = load_model(tiny_model("llama"), LoadSettings(tokenizer=tiny_tokenizer()))
    assert end_tokens(loaded, None) == (EOS,)
    assert end_tokens(loaded, GenerationConfig(eos_token_id=[EOS, 7])) == (7, EOS)
    assert end_tokens(loaded, None, ["a", 3]) == (3, loaded.tokenizer.convert_tokens_to_ids("a"), EOS)
    with pytest.raises(UsageError, match=r"has no token '<eoz>' \(did you mean '<eos>'\?\)"):
        end_tokens(loaded, None, ["<eoz>"])
    for other in (1.5, True, [1]):
        with pytest.raises(UsageError, match="stop_tokens must hold tokens as texts or whole numbers, got "):
            end_tokens(loaded, None, [other])  # type: ignore[list-item]
    with pytest.raises(UsageError, match="has no token 272"):
        end_tokens(loaded, None, [272])


@pytest.mark.parametrize("settings", [{}, {"chat": False}, {"tokenizer": {"begins": True}, "system": "Be brief."}])
def test_a_short_text_is_let_pass_only_where_its_tokens_fit(settings: dict[str, Any]) -> None:
    """From one letter to more than the context has room for: `check` says what counting would say."""
    own = encoder(**settings)
    verdicts = []
    for length in range(1, 2 * CONTEXT):
        prompt = Prompt(text=("ab c,1" * CONTEXT)[:length])
        fits = len(own._tokens([prompt])[0]) <= CONTEXT - 28
        try:
            own.check([prompt])
        except UsageError:
            verdicts.append((fits, False))
        else:
            verdicts.append((fits, True))
    assert set(verdicts) == {(True, True), (False, False)}
