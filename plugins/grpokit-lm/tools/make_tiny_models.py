"""Makes the tiny language models that ship with grpokit-lm: the starts of `lm-arithmetic`, `lm-countdown`, `lm-guess`.

Each is a Llama of 140,288 parameters that reads bytes, trained from random weights by ordinary next-token learning on
right answers. Half of the answers (sums) or three in four (countdown) think first, in the format that the rewards ask
for; the others give the result plainly. `guess` learns from legal games of guessing a number, in which every other
guess ignores what the world said before. The training is stopped while samples are still mediocre, so that GRPO has
something to improve. It is
deterministic: the same seed, torch version and number of threads give the same files.

    python tools/make_tiny_models.py              # makes all, in a few minutes
    python tools/make_tiny_models.py arithmetic   # makes one
    python tools/make_tiny_models.py --check      # exits with 1 where files do not fit this script; trains nothing

`--check` compares configurations, tokenizers, and the names, shapes and types of weights, not their values.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from torch.nn import functional
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, PreTrainedTokenizerFast
from transformers.utils import logging

from grpokit import Prompt
from grpokit_lm.tasks import arithmetic, countdown
from grpokit_lm.worlds import guess

FOLDER = Path(__file__).parent.parent / "src/grpokit_lm/models"
SPECIALS = ("<|pad|>", "<|end|>", "<|system|>", "<|user|>", "<|assistant|>")
TAGS = ("<think>", "</think>", "<answer>", "</answer>")  # one token each, and part of the text
CHAT_TEMPLATE = (
    "{% for message in messages %}<|{{ message['role'] }}|>{{ message['content'] }}<|end|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
BATCH, LEARNING_RATE, WARMUP, IGNORED = 64, 2e-3, 50, -100

Texts = Iterator[tuple[str, str]]  # questions with their answers


def sums() -> Texts:
    """Sums with their answers in three styles."""
    for i, (a, b) in enumerate(arithmetic.problems("pretrain")):
        thought, plain, equation = arithmetic.solution(a, b), str(a + b), f"{a} + {b} = {a + b}"
        yield arithmetic.question(a, b), (thought, plain, thought, equation)[i % 4]


def makings() -> Texts:
    """Numbers in some of their orders, and a way to make the target, after up to two others; or that way alone."""
    draw = random.Random(0)
    ways: dict[tuple[int, ...], list[list[countdown.Step]]] = defaultdict(list)
    for (numbers, _), right in countdown.solutions().items():
        ways[numbers] += right
    for _, (numbers, target) in itertools.product(range(20), countdown.problems("pretrain")):
        others = [steps for steps in ways[numbers] if steps[-1][-1] != target]
        tries = draw.sample(others, min(draw.randrange(3), len(others)))
        thought = countdown.solution(*tries, draw.choice(countdown.solutions()[numbers, target]))
        plain = thought.partition("<answer>")[2].removesuffix("</answer>")
        order = draw.sample(numbers, len(numbers))
        yield countdown.question(order, target), plain if draw.randrange(4) == 0 else thought


def games() -> Texts:
    """Games with a player that guesses at random, every other time among the numbers that are still possible."""
    draw = random.Random(0)
    for _, text in itertools.product(range(60), guess.games("pretrain")):
        world, said = guess.GuessTheNumber(), ""
        question, lowest, highest = world.start(Prompt(text=text), draw.getrandbits(32)), world.low, world.high
        while True:
            least, most = (lowest, highest) if draw.randrange(2) else (world.low, world.high)
            number = draw.randint(least, most)
            answer = world.reply(str(number))
            if answer is None:
                break
            said += f"{number}<|end|><|user|>{answer}<|end|><|assistant|>"
            if answer == "higher":
                lowest = max(lowest, number + 1)
            else:
                highest = min(highest, number - 1)
        yield question, f"{said}{number}"


@dataclass(frozen=True, kw_only=True)
class Start:
    """A model to make: what it learns from, and for how many batches."""

    texts: Callable[[], Texts]
    steps: int


STARTS = {
    "arithmetic": Start(texts=sums, steps=1000),
    "countdown": Start(texts=makings, steps=1500),
    "guess": Start(texts=games, steps=800),
}


def tokenizer() -> PreTrainedTokenizerFast:
    """Reads any text: a token per byte, one for each tag, and those of the chat template."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    core = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    core.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in SPECIALS])
    core.add_tokens([AddedToken(name, special=False, normalized=False) for name in TAGS])
    made = PreTrainedTokenizerFast(tokenizer_object=core, pad_token="<|pad|>", eos_token="<|end|>")
    made.chat_template = CHAT_TEMPLATE
    return made


def network(vocabulary: PreTrainedTokenizerFast) -> Any:
    """A Llama with random weights."""
    config = LlamaConfig(
        vocab_size=len(vocabulary),
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=4,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=vocabulary.eos_token_id,
        pad_token_id=vocabulary.pad_token_id,
    )
    return AutoModelForCausalLM.from_config(config, dtype=torch.float32)


def learn(model: Any, reader: Any, start: Start, *, seed: int) -> None:
    """Next-token learning with AdamW on the answers; the learning rate falls to 0."""
    rows = []
    for question, answer in start.texts():
        message = [{"role": "user", "content": question}]
        prompt = reader.apply_chat_template(message, tokenize=False, add_generation_prompt=True)
        rows.append([reader(text)["input_ids"] for text in (prompt, f"{answer}<|end|>")])
    tokens = torch.zeros(len(rows), max(len(prompt) + len(answer) for prompt, answer in rows), dtype=torch.int64)
    labels = torch.full_like(tokens, IGNORED)
    for row, (prompt, answer) in enumerate(rows):
        tokens[row, : len(prompt) + len(answer)] = torch.tensor(prompt + answer)
        labels[row, len(prompt) : len(prompt) + len(answer)] = torch.tensor(answer)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LEARNING_RATE, weight_decay=0.01)
    generator = torch.Generator().manual_seed(seed)
    batches = (
        batch for _ in itertools.count() for batch in torch.randperm(len(rows), generator=generator).split(BATCH)
    )
    for step, batch in enumerate(itertools.islice(batches, start.steps), 1):
        for group in optimizer.param_groups:
            group["lr"] = LEARNING_RATE * min(step / WARMUP, 1 - (step - 1) / start.steps)
        logits = model(input_ids=tokens[batch]).logits[:, :-1]  # [B, T - 1, V]
        loss = functional.cross_entropy(logits.flatten(0, 1), labels[batch, 1:].flatten(), ignore_index=IGNORED)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        if step % 100 == 0:
            print(f"step {step:5d}  loss {loss.item():.4f} nats per token", flush=True)


def make(start: Start, folder: Path, *, seed: int = 0, trained: bool = True) -> None:
    """Write a model folder. Half precision keeps it small, and loads to the same fp32 numbers anywhere."""
    reader = tokenizer()
    torch.manual_seed(seed)
    model = network(reader)
    if trained:
        learn(model, reader, start, seed=seed)
    model.half().save_pretrained(folder)
    reader.save_pretrained(folder)


def differences(shipped: Path, made: Path) -> Iterator[str]:
    """In what a shipped folder differs from one that was made now."""
    here, now = ({file.name for file in folder.iterdir()} for folder in (shipped, made))
    if here != now:
        yield f"files {sorted(here)}, now {sorted(now)}"
        return
    for what, read in (("config", _config), ("tokenizer", _tokenizer), ("weights", _weights)):
        if read(shipped) != read(made):
            yield what


def _config(folder: Path) -> dict[str, Any]:
    config = LlamaConfig.from_pretrained(folder).to_dict()
    return {key: value for key, value in config.items() if key not in ("transformers_version", "_name_or_path")}


def _tokenizer(folder: Path) -> tuple[Any, ...]:
    reader = AutoTokenizer.from_pretrained(folder)
    return reader.backend_tokenizer.to_str(), reader.special_tokens_map, reader.chat_template


def _weights(folder: Path) -> dict[str, tuple[list[int], str]]:
    with safe_open(folder / "model.safetensors", framework="pt") as file:
        slices = {name: file.get_slice(name) for name in file.keys()}  # noqa: SIM118
        return {name: (part.get_shape(), part.get_dtype()) for name, part in slices.items()}


def check() -> int:
    """Print in what the shipped folders differ from what this script makes; returns the exit code."""
    wrong = []
    for name, start in STARTS.items():
        with tempfile.TemporaryDirectory() as folder:
            make(start, Path(folder), trained=False)
            wrong += [f"{name}: {each}" for each in differences(FOLDER / name, Path(folder))]
    if wrong:
        print("Shipped models are out of date; run python tools/make_tiny_models.py", *wrong, sep="\n", file=sys.stderr)
    return 1 if wrong else 0


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*STARTS, []], metavar="NAME", help=", ".join(STARTS))
    parser.add_argument("--check", action="store_true", help="compare what ships with what the script makes")
    options = parser.parse_args(arguments)
    logging.disable_progress_bar()
    if options.check:
        return check()
    torch.set_num_threads(1)
    for name in options.names or STARTS:
        make(STARTS[name], FOLDER / name)
        size = sum(file.stat().st_size for file in (FOLDER / name).iterdir())
        print(f"wrote {FOLDER / name}: {size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
