"""Prompts with pictures become what a model's processor gives, or one message."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from PIL import Image
from tiny_models import BOS, CHAT_TEMPLATE, IMAGE, tiny_model, tiny_tokenizer
from tiny_vision import VISION_FAMILIES, tiny_processor, tiny_vision_model

from grpokit import Prompt, UsageError
from grpokit_lm.loading import LoadSettings, load_model
from grpokit_lm.pictures import joined
from grpokit_lm.prompts import PromptEncoder, with_template

SMALL, WIDE = Image.new("RGB", (16, 16), "red"), Image.new("RGB", (40, 16), "blue")
PARTS = [{"type": "image"}, {"type": "text", "text": "and"}, {"type": "image"}]
MESSAGES = {"messages": [{"role": "user", "content": PARTS}]}


LLAVA = (  # as that of LLaVA-1.5 does, it reads parts only
    "{% for m in messages %}{{ m['role'] | upper }}: "
    "{% for p in m['content'] | selectattr('type', 'equalto', 'image') %}<image>\n{% endfor %}"
    "{% for p in m['content'] | selectattr('type', 'equalto', 'text') %}{{ p['text'] }} {% endfor %}{% endfor %}"
    "{% if add_generation_prompt %}ASSISTANT:{% endif %}"
)


def encoder(family: str = "qwen2.5-vl", *, chat_template: str | None = None, **settings: Any) -> PromptEncoder:
    loaded = load_model(tiny_vision_model(family), LoadSettings(tokenizer=tiny_processor(family)))
    if chat_template is not None:
        loaded = with_template(loaded, chat_template)
    return PromptEncoder(loaded=loaded, **({"max_new_tokens": 8} | settings))


def test_pictures_come_before_their_question() -> None:
    vision = encoder(system="Look.")
    text = "<system>Look.<eos><user><vision><image></vision>What?<eos><assistant>"
    assert vision.text(Prompt(text="What?", image=SMALL)) == text
    reading = vision.encode(Prompt(text="", images=[SMALL, WIDE], meta=MESSAGES))
    assert reading.tokens.tolist().count(IMAGE) == 4 + 2 * 5  # pixels / 64
    assert reading.pictures["image_grid_thw"].tolist() == [[1, 4, 4], [1, 4, 10]]
    assert vision.encode(Prompt(text="What?")).pictures == {}


@pytest.mark.parametrize("images", [[], [SMALL]], ids=len)
@pytest.mark.parametrize("default", [True, False])
@pytest.mark.parametrize("template", [LLAVA, "{{ bos_token }}" + LLAVA])
def test_a_text_begins_as_in_transformers(
    template: str, default: bool, images: list[Image.Image], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A processor adds the token that begins a text, unless the template wrote it or the processor adds none."""
    kind = transformers.LlavaProcessor
    read = kind.__call__
    monkeypatch.setattr(kind, "__call__", lambda *args, **given: read(*args, **{"add_special_tokens": default} | given))
    processor: Any = tiny_processor("llava", begins=True)
    processor.chat_template = template
    loaded = load_model(tiny_vision_model("llava"), LoadSettings(tokenizer=processor))
    parts = [*({"type": "image", "image": image} for image in images), {"type": "text", "text": "What?"}]
    expected = processor.apply_chat_template(
        [{"role": "user", "content": parts}], tokenize=True, add_generation_prompt=True, return_dict=True
    )["input_ids"][0]
    assert expected.count(BOS) == (default or template != LLAVA)
    vision = PromptEncoder(loaded=loaded, max_new_tokens=8, max_prompt_tokens=len(expected))
    vision.check([Prompt(text="What?", images=images)])
    assert vision.encode(Prompt(text="What?", images=images)).tokens.tolist() == expected


@pytest.mark.parametrize(
    ("template", "question", "further"),
    [
        (LLAVA, "USER: <image>\nWhat? ", "ASSISTANT: Two USER: Why? ASSISTANT:"),
        ("{% for m in messages %}[{{ m['content'] }}]{% endfor %}", "[<image>What?]", "[Two][Why?]"),
    ],
)
def test_a_template_of_one_form_prints_contents_of_either(template: str, question: str, further: str) -> None:
    vision = encoder("llava", chat_template=template)
    messages = [
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What?"}]},
        {"role": "assistant", "content": "Two"},
        {"role": "user", "content": "Why?"},
    ]
    assert vision.text(Prompt(text="", image=SMALL, meta={"messages": messages})) == question + further
    assert vision.text(Prompt(text="What?", image=SMALL)).startswith(question)


def test_a_template_is_set_in_a_copy() -> None:
    processor: Any = tiny_processor("llava")
    loaded = load_model(tiny_vision_model("llava"), LoadSettings(tokenizer=processor))
    assert with_template(loaded, LLAVA).processor.chat_template == LLAVA
    assert processor.chat_template == CHAT_TEMPLATE


def test_positions_by_hand() -> None:
    """A picture of 2 x 2 tokens at place 2: time stays, rows and columns count, and the text goes on behind."""
    reading = encoder(chat=False).encode(Prompt(text="ab<image>cd", image=SMALL))
    assert reading.positions is not None
    assert reading.positions.tolist() == [
        [0, 1, 2, 2, 2, 2, 4, 5],
        [0, 1, 2, 2, 3, 3, 4, 5],
        [0, 1, 2, 3, 2, 3, 4, 5],
    ]
    plain = encoder(chat=False).encode(Prompt(text="ab"))
    assert plain.positions is not None
    assert plain.positions.tolist() == [[0, 1]] * 3
    assert encoder("llava").encode(Prompt(text="What?", image=SMALL)).positions is None


@pytest.mark.parametrize("part", ["processor", "model"])
@pytest.mark.parametrize("error", [ImportError("needs torchvision"), AssertionError("")], ids=repr)
def test_what_a_processor_or_a_model_raises_is_one_message(error: Exception, part: str) -> None:
    def fail(*_: Any, **__: Any) -> Any:
        raise error

    reader = encoder().pictures
    assert reader is not None
    if part == "model":
        reader.model.base_model.get_rope_index = fail
    else:
        reader.processor = fail
    with pytest.raises(UsageError, match=f"processor cannot read a picture: {type(error).__name__}"):
        reader.read("<image>", [SMALL], special=False)


@pytest.mark.parametrize("family", VISION_FAMILIES)
def test_a_check_counts_what_is_read(family: str) -> None:
    """A run's check sees blank pictures; it counts tokens by the sizes of pictures."""
    prompt = Prompt(text="x", images=[SMALL, WIDE], meta=MESSAGES)
    length = len(encoder(family).encode(prompt).tokens)
    encoder(family, max_prompt_tokens=length).check([prompt])
    with pytest.raises(UsageError, match=f"has {length} tokens with its 2 pictures, more than max_prompt_tokens="):
        encoder(family, max_prompt_tokens=length - 1).check([prompt])


def test_a_batch_as_its_model_takes_it() -> None:
    """Pixels follow each other, smaller ones are filled up, and kinds of tokens stand where the tokens stand."""
    rows = [
        {"pixels": torch.ones(1, 2, 3), "mm_token_type_ids": torch.tensor([[0, 1]])},
        {},
        {"pixels": torch.ones(2, 1, 3), "mm_token_type_ids": torch.tensor([[1, 1, 0]])},
    ]
    given = joined(rows, [2, 3, 1], 5)
    assert given["pixels"].sum((1, 2)).tolist() == [6, 3, 3]
    assert given["mm_token_type_ids"].tolist() == [[0, 0, 0, 1, 0], [0] * 5, [0, 1, 1, 0, 0]]


@pytest.mark.parametrize(
    ("settings", "prompt", "words"),
    [
        ({}, Prompt(text="", image=SMALL, meta=MESSAGES), "has 2 image placeholders and 1 picture. A placeholder is"),
        ({}, Prompt(text="<image>?"), r"The prompt '<image>\?' has 1 image placeholder and 0 pictures"),
        ({}, Prompt(text="<image>?", image=SMALL), "has 2 image placeholders and 1 picture"),
        ({"chat": False}, Prompt(text="?", image=SMALL), "has 0 image placeholders and 1 picture"),
        (
            {},
            Prompt(text="x" * 60, images=[SMALL] * 12),
            "has 135 tokens with its 12 pictures, .* leaves 120. Make its pic",
        ),
        ({}, Prompt(text="?", image=Image.new("F", (16, 16))), "has the mode 'F', which does not define"),
    ],
)
def test_prompts_that_cannot_be_read(settings: dict[str, Any], prompt: Prompt, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        encoder(**settings).encode(prompt)
    with pytest.raises(UsageError, match=words):
        encoder(**settings).check([prompt])


def test_a_text_model_refuses_a_picture() -> None:
    """Its tokens alone would be scored as if the model had seen it."""
    text = PromptEncoder(
        loaded=load_model(tiny_model("llama"), LoadSettings(tokenizer=tiny_tokenizer())), max_new_tokens=8
    )
    with pytest.raises(UsageError, match=r"'What\?' has 1 source picture, and the model 'LlamaForCausalLM' has no"):
        text.check([Prompt(text="What?", image=SMALL)])
