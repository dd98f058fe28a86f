"""Makes the tiny vision-language model that ships with grpokit-grounding: the start of `grounding-scenes`.

It is a LLaVA, a CLIP tower and a Llama, of 263,168 parameters. It learns from random weights by next-token learning on
answers, and in the end on answers that are wrong on purpose: each side of a box lies some pixels too far outside. So it
knows the format and which shape is meant, and GRPO has to teach it to say where that ends. So small a model hardly
learns to see from answers alone, so at first every patch is asked as well what it shows, and whether that is meant.

    python tools/make_scenes_model.py           # makes it, in about ten minutes on one core
    python tools/make_scenes_model.py --check   # exits with 1 where files do not fit this script; trains nothing

`--check` compares configurations, tokenizers, and the names, shapes and types of weights, not their values.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import transformers
from safetensors import safe_open
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers
from torch import Tensor
from torch.nn import functional
from transformers.utils import logging

from grpokit_grounding.scenes import COLOURS, FORMS, RELATIONS, SIZE, SPLITS, Scene, Shape, phrases, picture, scenes

FOLDER = Path(__file__).parent.parent / "src/grpokit_grounding/models/scenes"
SPECIALS = ("<|pad|>", "<|end|>", "<|unknown|>", "<|system|>", "<|user|>", "<|assistant|>", "<image>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")
WORDS = sorted({"the", "largest", "smallest", *COLOURS, *FORMS, *" ".join(RELATIONS).split()})
PATCH = 8
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>"
    "{% if message['content'] is string %}{{ message['content'] }}{% else %}"
    "{% for part in message['content'] if part['type'] == 'text' %}{{ part['text'] }}{% endfor %}"
    "{% for part in message['content'] if part['type'] == 'image' %}<image>{% endfor %}"
    "{% endif %}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


@dataclass(frozen=True, kw_only=True)
class Course:
    """Some steps of learning on boxes of one kind.

    Attributes:
        loose: the most pixels by which each side of a box lies too far outside.
        steps: batches.
        rate: the highest learning rate; it falls to 0.
        looks: whether every patch is asked what it shows, and whether that is meant.
    """

    loose: int
    steps: int
    rate: float
    looks: bool = False


COURSES = (
    Course(loose=16, steps=1600, rate=2e-3, looks=True),  # to see, and to write in the right format
    Course(loose=0, steps=900, rate=2e-3, looks=True),  # to see exactly
    Course(loose=14, steps=100, rate=1e-3),  # to answer too large
)
WIDTH = 64
PICTURES, LESSONS = 32, 2  # in a batch, and about a picture
WARMUP, IGNORED = 100, -100


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """A token per word of the phrases, with a space before it and without, per number of pixels, and per tag."""
    texts = [*SPECIALS, *TAGS, *"[], ", *map(str, range(SIZE + 1)), *WORDS, *(f" {word}" for word in WORDS)]
    vocabulary = {text: number for number, text in enumerate(texts)}
    core = Tokenizer(models.WordLevel(vocab=vocabulary, unk_token="<|unknown|>"))
    core.pre_tokenizer = pre_tokenizers.Split(Regex(r" ?[A-Za-z]+|\d+|[^A-Za-z\d]"), behavior="isolated")
    core.decoder = decoders.Fuse()
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    core.add_tokens([AddedToken(name, special=False, normalized=False) for name in TAGS])
    named = {"pad_token": "<|pad|>", "eos_token": "<|end|>", "unk_token": "<|unknown|>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=core, extra_special_tokens={"image_token": "<image>"}, **named
    )


def processor() -> transformers.LlavaProcessor:
    """Reads a picture as 64 patches; one of another size is scaled to 64 x 64."""
    images = transformers.CLIPImageProcessorPil(
        size={"shortest_edge": SIZE},
        crop_size={"height": SIZE, "width": SIZE},
        image_mean=[0.9] * 3,  # the background is about 0
        image_std=[0.25] * 3,
    )
    return transformers.LlavaProcessor(
        images,
        tokenizer(),
        patch_size=PATCH,
        vision_feature_select_strategy="default",
        num_additional_image_tokens=1,
        chat_template=CHAT_TEMPLATE,
    )


def network(reader: transformers.LlavaProcessor) -> Any:
    """A LLaVA with random weights."""
    vocabulary = reader.tokenizer
    ids = {"bos_token_id": None, "eos_token_id": vocabulary.eos_token_id, "pad_token_id": vocabulary.pad_token_id}
    config = transformers.LlavaConfig(
        vision_config=transformers.CLIPVisionConfig(
            hidden_size=WIDTH,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            image_size=SIZE,
            patch_size=PATCH,
            projection_dim=64,
        ),
        text_config=transformers.LlamaConfig(
            vocab_size=len(vocabulary),
            hidden_size=WIDTH,
            intermediate_size=128,
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=4,
            max_position_embeddings=256,
            initializer_range=0.1,  # for a width of 64; the default suits thousands
            tie_word_embeddings=True,
            **ids,
        ),
        image_token_index=vocabulary.convert_tokens_to_ids("<image>"),
        image_seq_length=(SIZE // PATCH) ** 2,
        vision_feature_layer=-1,
        tie_word_embeddings=True,
    )
    model: Any = transformers.LlavaForConditionalGeneration(config).float()
    places = model.model.vision_tower.embeddings.position_embedding
    for layer in (model.model.multi_modal_projector.linear_1, model.model.multi_modal_projector.linear_2):
        torch.nn.init.normal_(layer.weight, std=0.1)
    torch.nn.init.normal_(places.weight, std=0.5)  # as large as what a patch shows, since the answer is a place
    numbers = vocabulary.convert_tokens_to_ids([str(number) for number in range(SIZE + 1)])
    with torch.no_grad():
        model.get_input_embeddings().weight[numbers] += 0.15 * waves(torch.arange(SIZE + 1), 64)
    return model


def waves(places: Tensor, width: int) -> Tensor:
    """Sines and cosines of places, [N] -> [N, width]: near ones are alike, as the model would have to learn."""
    lengths = 2 * SIZE / 1.2 ** torch.arange(width // 2)
    angles = 2 * torch.pi * places[:, None] / lengths
    return torch.cat([angles.sin(), angles.cos()], 1)


def patches(scene: Scene) -> Tensor:
    """Which of a scene's shapes is in each patch, counted from 1, or 0 for none: [64]. Of two, the larger counts."""
    starts = torch.arange(0, SIZE, PATCH)
    areas = [torch.full((len(starts),) * 2, 0.5)]
    for x1, y1, x2, y2 in (shape.box for shape in scene.shapes):
        across, down = (
            ((starts + PATCH).clamp(max=end) - starts.clamp(min=begin)).clamp(min=0)
            for begin, end in ((x1, x2), (y1, y2))
        )
        areas.append(down[:, None] * across)
    return torch.stack(areas).argmax(0).flatten()


class Looking(torch.nn.Module):
    """What every patch is asked beside the answers: what is there, and whether it is meant. It is not kept."""

    def __init__(self) -> None:
        super().__init__()
        self.report = ""
        self.colour, self.form = (torch.nn.Linear(WIDTH, 1 + len(names)) for names in (COLOURS, FORMS))
        self.edges = torch.nn.Linear(WIDTH, 4 * (SIZE + 1))
        self.meant = torch.nn.Linear(WIDTH, 1)

    def forward(self, tower: Tensor, decoder: Tensor, facts: Tensor, meant: Tensor) -> Tensor:
        """The loss of states of the tower [N, 64, H] and of the decoder, by facts [N, 64, 6] and what is meant."""
        filled = facts[facts[..., 0] > 0]
        edges = self.edges(tower[facts[..., 0] > 0]).view(-1, SIZE + 1)
        away = functional.cross_entropy(edges, filled[:, 2:].flatten())
        named = [
            functional.cross_entropy(layer(tower).flatten(0, 1), facts[..., axis].flatten())
            for axis, layer in enumerate((self.colour, self.form))
        ]
        chosen = functional.binary_cross_entropy_with_logits(self.meant(decoder)[..., 0], meant.float())
        self.report = f"edges {away.item():.2f} nats, meant {chosen.item():.4f} nats, "
        return sum(named, away + 4 * chosen)


def facts(scene: Scene) -> Tensor:
    """What is in each patch: the numbers of its colour and form, from 1, and its box; 0 where there is nothing."""
    rows = [(0,) * 6]
    rows += [([*COLOURS].index(s.colour) + 1, [*FORMS].index(s.form) + 1, *s.box) for s in scene.shapes]
    return torch.tensor(rows)[patches(scene)]


def answer(shape: Shape, draw: random.Random, loose: int) -> str:
    """A text in the right format, whose box is too large by up to so many pixels on every side."""
    x1, y1, x2, y2 = shape.box
    x1, y1 = (max(0, start - draw.randint(0, loose)) for start in (x1, y1))
    x2, y2 = (min(SIZE, end + draw.randint(0, loose)) for end in (x2, y2))
    return f"<think>{shape.colour} {shape.form}</think><answer>[{x1},{y1},{x2},{y2}]</answer><|end|>"


def learn(model: Any, reader: Any, course: Course, *, seed: int) -> None:
    """Next-token learning with AdamW on the answers, and where the course asks for it on what is in each patch."""
    draw = random.Random(seed)
    taught = list(scenes("pretrain"))
    pixels = torch.cat([reader.image_processor(picture(each), return_tensors="pt")["pixel_values"] for each in taught])
    known, places = torch.stack([facts(each) for each in taught]), torch.stack([patches(each) for each in taught])
    image = reader.tokenizer.convert_tokens_to_ids("<image>")
    looking = Looking()
    parameters = [*model.parameters(), *(looking.parameters() if course.looks else ())]
    optimizer = torch.optim.AdamW(parameters, lr=course.rate, weight_decay=0.01)
    begin = time.perf_counter()
    for step in range(1, course.steps + 1):
        chosen = draw.sample(range(len(taught)), PICTURES)
        rows, meant = [], []
        for number in chosen * LESSONS:
            shapes = taught[number].shapes
            which, phrase = draw.choice([(i, name) for i, s in enumerate(shapes) for name in phrases(s, shapes)])
            rows.append(tokens_of(reader, phrase, answer(shapes[which], draw, course.loose)))
            meant.append(places[number] == which + 1)
        tokens = torch.full((len(rows), max(len(p) + len(w) for p, w in rows)), reader.tokenizer.pad_token_id)
        labels = torch.full_like(tokens, IGNORED)
        for line, wanted, (prompt, written) in zip(tokens, labels, rows, strict=True):
            line[: len(prompt) + len(written)] = torch.tensor(prompt + written)
            wanted[len(prompt) : len(prompt) + len(written)] = torch.tensor(written)
        for group in optimizer.param_groups:
            group["lr"] = course.rate * min(step / WARMUP, 1 - (step - 1) / course.steps)
        tower = model.model.vision_tower(pixels[chosen]).last_hidden_state[:, 1:]  # [N, 64, H]
        features = model.model.multi_modal_projector(tower).repeat(LESSONS, 1, 1)
        pictured = tokens == image
        inputs = model.get_input_embeddings()(tokens).masked_scatter(pictured[..., None], features)
        states = model.get_decoder()(inputs_embeds=inputs, use_cache=False).last_hidden_state
        logits = model.lm_head(states[:, :-1])  # [N, T - 1, V]
        reading = functional.cross_entropy(logits.flatten(0, 1), labels[:, 1:].flatten(), ignore_index=IGNORED)
        loss = reading
        if course.looks:
            seen = states[pictured].view(len(rows), -1, WIDTH)
            loss = reading + looking(tower, seen, known[chosen], torch.stack(meant))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        optimizer.step()
        if step % 100 == 0:
            spent = f"{time.perf_counter() - begin:.0f} s"
            print(f"step {step:5d}  {reading.item():.4f} nats per token, {looking.report}{spent}", flush=True)


def tokens_of(reader: Any, phrase: str, written: str) -> tuple[list[int], list[int]]:
    """A prompt and an answer as tokens, with as many image tokens as the model wants."""
    messages = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": phrase}]}]
    text = reader.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    text = text.replace("<image>", "<image>" * (SIZE // PATCH) ** 2)
    prompt, answer = (reader.tokenizer(each, add_special_tokens=False)["input_ids"] for each in (text, written))
    return prompt, answer


def make(folder: Path, *, seed: int = 0, trained: bool = True) -> None:
    """Write a model folder. Half precision keeps it small, and loads to the same fp32 numbers anywhere."""
    reader = processor()
    torch.manual_seed(seed)
    model = network(reader)
    for course in COURSES if trained else ():
        learn(model, reader, course, seed=seed)
        model.half().float()  # as a file between them would hold it
    model.half().save_pretrained(folder)
    reader.save_pretrained(folder)


def differences(shipped: Path, made: Path) -> Iterator[str]:
    """In what a shipped folder differs from one that was made now."""
    here, now = ({file.name for file in folder.iterdir()} for folder in (shipped, made))
    if here != now:
        yield f"files {sorted(here)}, now {sorted(now)}"
        return
    for what, read in (("config", _config), ("processor", _processor), ("weights", _weights)):
        if read(shipped) != read(made):
            yield what


def _config(folder: Path) -> dict[str, Any]:
    config = transformers.LlavaConfig.from_pretrained(folder).to_dict()
    return {key: value for key, value in config.items() if key not in ("transformers_version", "_name_or_path")}


def _processor(folder: Path) -> tuple[Any, ...]:
    reader = transformers.AutoProcessor.from_pretrained(folder)
    vocabulary = reader.tokenizer
    return (
        vocabulary.backend_tokenizer.to_str(),
        vocabulary.special_tokens_map,
        reader.chat_template,
        reader.to_dict(),
    )


def _weights(folder: Path) -> dict[str, tuple[list[int], str]]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}


def check() -> int:
    """Print in what the shipped folder differs from what this script makes; returns the exit code."""
    with tempfile.TemporaryDirectory() as folder:
        make(Path(folder), trained=False)
        wrong = list(differences(FOLDER, Path(folder)))
    if wrong:
        print("The shipped model is out of date; run python tools/make_scenes_model.py", *wrong, sep="\n")
    return 1 if wrong else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare what ships with what the script makes")
    options = parser.parse_args(arguments)
    logging.disable_progress_bar()
    if options.check:
        return check()
    torch.set_num_threads(1)
    make(FOLDER)
    size = sum(file.stat().st_size for file in FOLDER.iterdir())
    print(f"wrote {FOLDER}: {size / 1024:.0f} KiB, from {SPLITS['pretrain']:,} scenes")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
