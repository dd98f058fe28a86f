"""Mistakes with glm-image-ar through the real command line: one message, exit code 2, and no weights read.

Every entry of the table is a kind of mistake: what is typed, what the message must contain, and what is in the
folder beside a pipeline, a config and its prompts.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file, save_file

from command_line import Call
from grpokit_glm_image import pipeline
from grpokit_glm_image.policy import GlmImageAR
from grpokit_glm_image.tiny import tiny_pipeline

pytestmark = pytest.mark.usefixtures("small_draft")
CONFIG = """
policy: {use: glm-image-ar, model: base, size: [64, 96], lora: {r: 4}, decode: {steps: 1}, eval_decode: {steps: 1}}
data: {prompts: prompts.txt}
rewards: [{use: brightness}]
trainer: {steps: 1, prompts_per_step: 2, group_size: 2, device: cpu}
run: {dir: out, threads: 1}
"""
EDITS = ("policy.edits=true", "data={prompts: prompts.txt, images: sources}")
Change = Callable[[Path], None]


def nothing(folder: Path) -> None:
    """Leave the folder as it is."""


@dataclass(frozen=True)
class Bad:
    """A mistake.

    Attributes:
        typed: the words behind `grpokit`.
        says: what the message must contain.
        change: changes the folder.
    """

    typed: Sequence[str]
    says: Sequence[str]
    change: Change = nothing


def train(override: str, *says: str, change: Change = nothing) -> Bad:
    return Bad(["train", "c.yaml", override], says, change)


def edit(*says: str, change: Change = nothing) -> Bad:
    return Bad(["train", "c.yaml", *EDITS], says, change)


def sources(*sizes: tuple[int, int]) -> Change:
    """Pictures to edit, of width and height."""

    def change(folder: Path) -> None:
        (folder / "sources").mkdir()
        for line, size in enumerate(sizes, 1):
            Image.new("RGB", size).save(folder / "sources" / f"{line}.png")

    return change


def no_picture(folder: Path) -> None:
    sources((96, 64), (96, 64))(folder)
    (folder / "sources" / "2.png").write_text("hello")


def without(place: str) -> Change:
    """The pipeline without a file or a folder."""

    def change(folder: Path) -> None:
        path = folder / "base" / place
        shutil.rmtree(path) if path.is_dir() else path.unlink()

    return change


def torn(place: str) -> Change:
    """The pipeline with the first half of a file."""

    def change(folder: Path) -> None:
        path = folder / "base" / place
        path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])

    return change


def another_pipeline(folder: Path) -> None:
    change_json(folder / "base" / "model_index.json", _class_name="FluxPipeline")


def another_type(folder: Path) -> None:
    change_json(folder / "base" / "vision_language_encoder" / "config.json", model_type="glm4v")


def change_json(file: Path, **values: Any) -> None:
    file.write_text(json.dumps({**json.loads(file.read_text()), **values}))


def adapter(folder: Path) -> dict[str, torch.Tensor]:
    """Write an adapter of the pipeline; returns its tensors."""
    (folder / "adapter").mkdir()
    GlmImageAR(folder / "base", size=(64, 96), lora={"r": 4}).export(folder / "adapter")
    return load_file(folder / "adapter" / "adapter_model.safetensors")


def wide_adapter(folder: Path) -> None:
    wide = {name: torch.cat([x, x], 1) if "lora_A" in name else x for name, x in adapter(folder).items()}
    save_file(wide, folder / "adapter" / "adapter_model.safetensors")


def deep_adapter(folder: Path) -> None:
    more = {name.replace("layers.1", "layers.7"): x.clone() for name, x in adapter(folder).items()}
    save_file(more, folder / "adapter" / "adapter_model.safetensors")


def decoders_adapter(folder: Path) -> None:
    adapter(folder)
    change_json(folder / "adapter" / "adapter_config.json", target_modules=["to_q", "to_k"])


def silent_prompts(folder: Path) -> None:
    (folder / "prompts.txt").write_text("a sign\ntwo dogs\n")


def blank_prompts(folder: Path) -> None:
    (folder / "blank.jsonl").write_text('{"prompt": "a cat"}\n{"prompt": " "}\n')


SIZE = ("policy: size must be height and width in pixels, both positive multiples of 32", "The nearest is [96, 96]")
NOWHERE = ("The model folder 'nowhere' does not exist. Give a folder that GlmImagePipeline.save_pretrained wrote",)
TABLE: Mapping[str, Bad] = {
    "a size": train("policy.size=[100, 96]", *SIZE),
    "a size for plan": Bad(["plan", "c.yaml", "policy.size=[100, 96]"], SIZE),
    "a size for sample": Bad(["sample", "c.yaml", "policy.size=[100, 96]"], SIZE),
    "a size for check": Bad(["check", "glm-image-ar", "size=[100, 96]"], SIZE[1:]),
    "a size beyond the context": train("policy.size=[4096, 4096]", "16,640 visual tokens, and the model reads 8,192"),
    "no folder": train("policy.model=./nowhere", *NOWHERE),
    "no folder for plan": Bad(["plan", "c.yaml", "policy.model=./nowhere"], NOWHERE),
    "no folder for sample": Bad(["sample", "c.yaml", "policy.model=./nowhere"], NOWHERE),
    "no folder for check": Bad(["check", "glm-image-ar", "model=./nowhere"], NOWHERE),
    "no such repository": train("policy.model=no/where", "'no/where' is not a folder here and not in the Hugging Face"),
    "another pipeline": train("policy.model=base", "holds a FluxPipeline, not a Glm", change=another_pipeline),
    "another type": train("policy.model=base", "has a model of type 'glm4v'", change=another_type),
    "no vae": train("policy.model=base", "is incomplete: it has no 'vae/config.json'", change=without("vae")),
    "no weights": train(
        "policy.model=base",
        "has no weights in 'transformer': expected .safetensors. Copy or download it again",
        change=without("transformer/diffusion_pytorch_model.safetensors"),
    ),
    "half of the weights": train(
        "policy.model=base", "is damaged (", "again", change=torn("vae/diffusion_pytorch_model.safetensors")
    ),
    "half of a tokenizer": train(
        "policy.model=base", "The part 'processor' of the model", change=torn("processor/tokenizer.json")
    ),
    "no chat template": train(
        "policy.model=base", "has no chat template", change=without("processor/chat_template.jinja")
    ),
    "no prompts": train(
        "data.prompts=no.txt", "The text file no.txt does not exist", "Run the command in the folder that holds it"
    ),
    "an empty prompt": Bad(["sample", "c.yaml", "--prompt", ""], ["The prompt is empty. Expected a text that says"]),
    "an empty prompt in a file": train(
        "data={prompts: blank.jsonl}", "blank.jsonl, line 2: the prompt is ' '", change=blank_prompts
    ),
    "no quotes for ocr": train(
        "rewards=[{use: ocr}]",
        "The reward 'ocr' can score no training prompt, first prompts.txt, line 1 ('a sign'): it has no text in",
        change=silent_prompts,
    ),
    "a token of the model's": Bad(["sample", "c.yaml", "--prompt", "a <|image|>"], ["is a token of the model's own"]),
    "a source of a wrong size": edit(
        "prompts.txt, line 2: ", "100 x 64 pixels", "resize it to 96 x 64.", change=sources((96, 64), (100, 64))
    ),
    "a source too large": edit("processor would scale to 2048 x 2048", change=sources((96, 64), (2080, 2080))),
    "a source that is a text": edit("line 2: sources/2.png cannot be read as a picture", change=no_picture),
    "a source too few": edit("prompts.txt, line 2, has no picture in sources", change=sources((96, 64))),
    "no folder of sources": edit("There is no folder sources", "1.png, 2.jpg"),
    "sources for texts": Bad(["train", "c.yaml", EDITS[1]], ["set policy.edits=true"], sources((96, 64), (96, 64))),
    "no source for an edit": Bad(
        ["sample", "c.yaml", "policy.edits=true", "--prompt", "red"], ["'red' has no picture to edit. Name a folder"]
    ),
    "an adapter of another width": train(
        "policy.lora={adapter: adapter}",
        "'adapter' does not fit the model (it was trained on '",
        "base'): 12 tensors of another shape, such as 'base_model.model.model.language_model.layers.0.",
        ", which is [4, 192] in its file, and [4, 96] for this model.",
        change=wide_adapter,
    ),
    "an adapter of a deeper model": train(
        "policy.lora={adapter: adapter}", "does not fit the model", "without a counterpart", change=deep_adapter
    ),
    "an adapter of the decoder": train(
        "policy.lora={adapter: adapter}", "does not fit the model", "'to_", change=decoders_adapter
    ),
    "a pipeline as an adapter": train(
        "policy.lora={adapter: base}", "'base' has no adapter_config.json. Give a folder"
    ),
    "layers to adapt": train("policy.lora.targets=[to_q]", "no linear layer of GlmImage", "is called 'to_q'"),
    "a key of lora": train("policy.lora={rank: 4}", "lora has no key 'rank'"),
    "a parameter": train("policy.sizes=[64, 96]", "has no parameter 'sizes' (did you mean 'size'?)"),
    "a key of decode": train("policy.decode.stps=3", "decode has no key 'stps' (did you mean 'steps'?)"),
    "a key of eval_decode": Bad(["plan", "c.yaml", "policy.eval_decode.stps=3"], ["eval_decode has no key 'stps'"]),
    "no step": train("policy.decode.steps=0", "decode: steps must be at least 1, got 0"),
    "a decode in another shape": train(
        "policy.decode.size=[32, 96]", "decode: size is 32 x 96, and the large grid's picture has the shape of 64 x 96"
    ),
    "rewards that see another shape": train(
        "policy.eval_decode.reward_size=[96, 64]", "eval_decode: reward_size is 96 x 64, and the picture has the shape"
    ),
    "the draft of an edit": Bad(
        ["train", "c.yaml", *EDITS, "policy.decode.tokens=draft"],
        ["decode: tokens is 'draft', and an edit has no draft. Leave it out"],
        sources((96, 64), (96, 64)),
    ),
    "half precision": train("policy.dtype=float16", "dtype 'float16' makes black pictures"),
    "a temperature of zero": Bad(["plan", "c.yaml", "policy.temperature=0"], ["temperature must be above 0"]),
    "an export of no run": Bad(["export", "c.yaml", "--to", "new"], ["c.yaml is not a run folder"]),
}


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines") / "base"
    tiny_pipeline().save_pretrained(folder)
    return folder


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The parts whose weights were read."""
    parts: list[str] = []
    read = pipeline._read

    def noted(kind: Any, folder: Path, *arguments: Any, **options: Any) -> Any:
        parts.append(folder.name)
        return read(kind, folder, *arguments, **options)

    monkeypatch.setattr(pipeline, "_read", noted)
    return parts


@pytest.fixture
def here(base: Path, call: Call) -> Path:
    """The folder in which `call` works, with a pipeline, a config and prompts."""
    folder = Path.cwd()
    shutil.copytree(base, folder / "base")
    (folder / "c.yaml").write_text(CONFIG)
    (folder / "prompts.txt").write_text('a sign "OPEN"\ntwo dogs\n')
    return folder


@pytest.mark.parametrize("bad", TABLE.values(), ids=list(TABLE))
def test_a_mistake_is_one_message_before_weights_are_read(bad: Bad, here: Path, call: Call, reads: list[str]) -> None:
    bad.change(here)
    reads.clear()
    before = sorted(here.rglob("*"))
    done = call(*bad.typed)
    assert done.code == 2, done.err
    assert len(re.findall(r"^error: ", done.err, re.MULTILINE)) == 1
    assert done.err.startswith("error: ")
    assert [line[:4] for line in done.err.splitlines()[1:]] in ([], ["see "])
    assert len(done.err) < 1000
    assert all(words in done.err for words in bad.says), done.err
    assert "Traceback" not in done.err + done.out
    assert reads == []
    assert sorted(here.rglob("*")) == before


@pytest.mark.usefixtures("here")
def test_a_run_reads_the_weights(call: Call, reads: list[str]) -> None:
    """Else the tests above would show nothing. What a run's own weights do not fit can only be known then."""
    assert call("train", "c.yaml").code == 0
    assert sorted(reads) == ["text_encoder", "transformer", "vae", "vision_language_encoder"]
    for words, message in (
        (["sample", "out", "policy.lora.r=8"], "belongs to another model or adapter: it differs in 24 tensors, such"),
        (["export", "out", "--to", "new", "policy.lora=null"], "step_000001 holds an adapter. Use the same lora"),
    ):
        done = call(*words)
        assert (done.code, message in done.err, done.err.count("\n")) == (2, True, 1), done.err
    assert not Path("new").exists()


@pytest.mark.usefixtures("here")
def test_prompts_that_ocr_cannot_score_are_named_at_the_start(call: Call) -> None:
    ocr = "rewards=[{use: ocr, weight: 0.5}, {use: brightness, weight: 0.5}]"
    said = call("train", "c.yaml", ocr).out
    warning = said.index("warning: the reward 'ocr' cannot score 1 of 2 training prompts, first prompts.txt, line 2 (")
    assert warning < said.index("step 1/1")
    assert "cannot score" not in call("train", "c.yaml", "--overwrite").out
