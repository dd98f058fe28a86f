"""Loading a GLM-Image pipeline: what comes out, and what is refused before weights are read."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from diffusers import FlowMatchHeunDiscreteScheduler, GlmImagePipeline
from huggingface_hub import constants
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import GlmImageForConditionalGeneration

from grpokit import UsageError
from grpokit_glm_image.pipeline import Loaded, load, types
from grpokit_glm_image.tiny import tiny_pipeline
from grpokit_hf.models.sources import SourceSettings

SIZE = (64, 96)


@pytest.fixture(scope="module")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pipelines") / "tiny"
    tiny_pipeline().save_pretrained(folder)
    return folder


@pytest.fixture
def folder(tiny_folder: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_folder, tmp_path / "tiny"))


def change(file: Path, **values: Any) -> None:
    """Change keys of a JSON file; a value that is a mapping changes keys inside."""
    content = json.loads(file.read_text())
    for key, value in values.items():
        content[key] = {**content[key], **value} if isinstance(value, dict) else value
    file.write_text(json.dumps(content))


def logits(loaded: Loaded) -> torch.Tensor:
    tokens = torch.arange(64, 96)[None]
    return loaded.ar(input_ids=tokens, position_ids=torch.arange(32).expand(3, 1, -1)).logits


@pytest.mark.parametrize("edits", [False, True])
@torch.no_grad()
def test_name_folder_and_object_load_the_same_model(tiny_folder: Path, edits: bool) -> None:
    own, random_state = tiny_pipeline(), torch.get_rng_state()
    every = [load(model, size=SIZE, edits=edits) for model in ("tiny", tiny_folder, own)]
    assert [loaded.name for loaded in every] == ["tiny", str(tiny_folder), "GlmImagePipeline"]
    assert torch.equal(torch.get_rng_state(), random_state)
    for loaded in every:
        assert type(loaded.ar) is GlmImageForConditionalGeneration
        assert loaded.ar.dtype == loaded.pipeline.transformer.dtype == torch.float32
        assert torch.equal(logits(loaded), logits(every[0]))
        assert loaded.pipeline.vision_language_encoder is None
    assert all((loaded.ar.model.visual is not None) == edits for loaded in every[:2])
    assert every[2].ar is own.vision_language_encoder


def test_text_to_image_needs_no_vision_tower_and_edits_do(folder: Path) -> None:
    file = folder / "vision_language_encoder" / "model.safetensors"
    rest = {name: x for name, x in load_file(file).items() if "visual" not in name and "vqmodel" not in name}
    save_file(rest, file, metadata={"format": "pt"})
    loaded = load(folder, size=SIZE)
    assert loaded.ar.model.visual is None
    assert loaded.ar.model.vqmodel is None
    assert {name for name, _ in loaded.ar.named_parameters()} == set(rest)
    with pytest.raises(UsageError, match=r"incomplete: they lack 20 tensors, such as 'model\.visual"):
        load(folder, size=SIZE, edits=True)


@pytest.mark.parametrize(
    ("dtype", "trains_base", "device", "writes_in", "paints_in"),
    [
        ("auto", False, "cuda", torch.bfloat16, torch.bfloat16),
        ("auto", True, "cuda", torch.float32, torch.bfloat16),
        ("auto", False, "cpu", torch.float32, torch.float32),
        ("float32", False, "cuda", torch.float32, torch.float32),
        ("bf16", True, "cuda", torch.bfloat16, torch.bfloat16),
    ],
)
def test_the_halves_have_the_types_that_suit_the_device_and_training(
    dtype: str, trains_base: bool, device: str, writes_in: torch.dtype, paints_in: torch.dtype
) -> None:
    assert types(dtype, trains_base=trains_base, device=device) == (writes_in, paints_in)


@pytest.mark.parametrize("name", ["tiny", "folder"])
def test_weights_are_read_in_the_type_that_is_asked_for(
    tiny_folder: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr("grpokit_hf.models.dtypes.cpu_has_bfloat16", lambda: True)
    loaded = load(name if name == "tiny" else tiny_folder, size=SIZE, dtype="bfloat16")
    models = (loaded.ar, loaded.pipeline.transformer, loaded.pipeline.vae, loaded.pipeline.text_encoder)
    assert {model.dtype for model in models} == {torch.bfloat16}


def no_file(folder: Path) -> Path:
    return folder / "nowhere"


def a_file(folder: Path) -> Path:
    return folder / "model_index.json"


def an_adapter(folder: Path) -> Path:
    (folder / "adapter_config.json").write_text("{}")
    (folder / "model_index.json").unlink()
    return folder


def a_language_model(folder: Path) -> Path:
    (folder / "config.json").write_text('{"model_type": "llama"}')
    (folder / "model_index.json").unlink()
    return folder


def the_writer_alone(folder: Path) -> Path:
    return folder / "vision_language_encoder"


def no_index(folder: Path) -> Path:
    (folder / "model_index.json").unlink()
    return folder


def another_pipeline(folder: Path) -> Path:
    change(folder / "model_index.json", _class_name="FluxPipeline")
    return folder


def no_vae(folder: Path) -> Path:
    shutil.rmtree(folder / "vae")
    return folder


def no_tokens(folder: Path) -> Path:
    for file in (folder / "processor").iterdir():
        file.unlink()
    return folder


def no_scheduler_config(folder: Path) -> Path:
    (folder / "scheduler" / "scheduler_config.json").unlink()
    return folder


def another_scheduler(folder: Path) -> Path:
    change(folder / "scheduler" / "scheduler_config.json", _class_name="DDIMScheduler")
    return folder


def a_torn_config(folder: Path) -> Path:
    (folder / "transformer" / "config.json").write_text('{"patch_size": ')
    return folder


def a_list(folder: Path) -> Path:
    (folder / "transformer" / "config.json").write_text("[]")
    return folder


def another_writer(folder: Path) -> Path:
    change(folder / "vision_language_encoder" / "config.json", model_type="glm4v")
    return folder


def another_codebook(folder: Path) -> Path:
    change(folder / "transformer" / "config.json", prior_vq_quantizer_codebook_size=32)
    return folder


def another_first_mark(folder: Path) -> Path:
    change(folder / "vision_language_encoder" / "config.json", image_start_token_id=65)
    return folder


def other_channels(folder: Path) -> Path:
    change(folder / "vae" / "config.json", latent_channels=16)
    return folder


def other_glyphs(folder: Path) -> Path:
    change(folder / "text_encoder" / "config.json", d_model=1472)
    return folder


def another_patch(folder: Path) -> Path:
    change(folder / "transformer" / "config.json", patch_size=1)
    return folder


def torn_tokens(folder: Path) -> Path:
    (folder / "processor" / "tokenizer.json").write_text("{")
    return folder


def no_template(folder: Path) -> Path:
    (folder / "processor" / "chat_template.jinja").unlink()
    return folder


def a_short_context(folder: Path) -> Path:
    change(folder / "vision_language_encoder" / "config.json", text_config={"max_position_embeddings": 262})
    return folder


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (no_file, r"nowhere' does not exist\. Give a folder"),
        (a_file, r"model_index\.json' is a file\. Give a folder"),
        (an_adapter, r"holds an adapter, not a pipeline.*lora: \{adapter: .*tiny\}"),
        (a_language_model, r"holds a single model of type 'llama', not a pipeline.*policy hf-lm"),
        (the_writer_alone, r"holds the autoregressive half alone.*called 'vision_language_encoder'"),
        (no_index, r"has no model_index\.json\. Give a folder"),
        (another_pipeline, r"holds a FluxPipeline, not a GlmImagePipeline"),
        (no_vae, r"is incomplete: it has no 'vae/config\.json'\. Copy or download it again"),
        (no_tokens, r"is incomplete: it has no 'processor/\*\.json'"),
        (no_scheduler_config, r"is incomplete: it has no 'scheduler/scheduler_config\.json'"),
        (another_scheduler, r"scheduler .*tiny' is DDIMScheduler\. Expected FlowMatchEulerDiscreteScheduler"),
        (a_torn_config, r"transformer/config\.json' is damaged"),
        (a_list, r"transformer/config\.json' is damaged: expected keys and values"),
        (another_writer, r"has a model of type 'glm4v' in 'vision_language_encoder'\. Expected 'glm_image'"),
        (another_codebook, r"visual codes is 64 by .*num_embeddings, and 32 by transformer: prior_vq"),
        (another_first_mark, r"visual codes is 64 by .*, and 65 by .*image_start_token_id"),
        (other_channels, r"channels is 16 by vae: latent_channels, and 4 by transformer: in_channels"),
        (other_glyphs, r"numbers for a glyph is 1472 by text_encoder: d_model, and 32 by transformer"),
        (another_patch, r"Got vae: block_out_channels \[8, 8, 8, 8\] and transformer: patch_size 1\."),
        (torn_tokens, r"The part 'processor' of the model '.*tiny' cannot be loaded: Expecting property name"),
        (no_template, r"processor' has no chat template, chat_template\.jinja\. Copy or download it again"),
        (a_short_context, r"size is 64 x 96: such a picture has 262 visual tokens, and the model reads 262 at most"),
    ],
)
def test_a_folder_without_weights_is_refused_for_what_its_other_files_say(
    folder: Path, broken: Callable[[Path], Path], message: str
) -> None:
    for file in folder.rglob("*.safetensors"):
        file.unlink()
    with pytest.raises(UsageError, match=message):
        load(broken(folder), size=SIZE)


def no_weights(file: Path) -> None:
    file.unlink()


def pickled_weights(file: Path) -> None:
    file.unlink()
    name = "pytorch_model.bin" if file.name == "model.safetensors" else f"{file.stem}.bin"
    torch.save({"a": file}, file.with_name(name))


def torn_weights(file: Path) -> None:
    file.write_bytes(file.read_bytes()[:-100])


def a_pointer(file: Path) -> None:
    file.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 1\n")


def half_of_two(file: Path) -> None:
    index = {"weight_map": {"a": "one.safetensors", "b": file.name}}
    file.with_name(f"{file.name}.index.json").write_text(json.dumps(index))
    file.rename(file.with_name("two.safetensors"))


@pytest.mark.parametrize("part", ["vision_language_encoder/model", "vae/diffusion_pytorch_model", "text_encoder/model"])
@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (no_weights, "has no weights in '{part}'"),
        (pickled_weights, r"has no weights in '{part}': expected \.safetensors"),
        (torn_weights, "is damaged"),
        (a_pointer, "is a pointer of Git LFS"),
        (half_of_two, r"index\.json names 2 files, and .* is not there"),
    ],
)
def test_weights_that_are_not_there_are_refused_before_any_are_read(
    folder: Path, monkeypatch: pytest.MonkeyPatch, broken: Callable[[Path], None], message: str, part: str
) -> None:
    monkeypatch.setattr("grpokit_glm_image.pipeline._read", pytest.fail)
    broken(folder / f"{part}.safetensors")
    with pytest.raises(UsageError, match=message.format(part=part.partition("/")[0])):
        load(folder, size=SIZE)


@pytest.mark.parametrize(
    ("file", "values", "message"),
    [
        ("vision_language_encoder/config.json", {"text_config": {"hidden_size": "x"}}, "config.json' cannot be used"),
        ("text_encoder/config.json", {"num_layers": "x"}, "The part 'text_encoder' of the model .* cannot be loaded"),
        ("vae/config.json", {"act_fn": "x"}, "The part 'vae' of the model .* cannot be loaded"),
        ("transformer/config.json", {"num_layers": []}, "The part 'transformer' of the model .* cannot be loaded"),
        (
            "scheduler/scheduler_config.json",
            {"num_train_timesteps": "x"},
            "part 'scheduler' of the model .* cannot be",
        ),
    ],
)
def test_configurations_that_cannot_be_used_are_one_message(
    folder: Path, file: str, values: dict[str, Any], message: str
) -> None:
    change(folder / file, **values)
    with pytest.raises(UsageError, match=message):
        load(folder, size=SIZE)


@pytest.mark.parametrize("part", ["vision_language_encoder/model", "vae/diffusion_pytorch_model"])
def test_weights_that_lack_a_tensor_are_refused(folder: Path, part: str) -> None:
    file = folder / f"{part}.safetensors"
    tensors = load_file(file)
    name = min(tensors)
    del tensors[name]
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(UsageError, match=f"incomplete: they lack 1 tensor, such as '{name}'"):
        load(folder, size=SIZE)


@pytest.mark.parametrize(
    ("size", "message"),
    [
        ([100, 96], r"positive multiples of 32, such as \[1024, 1024\]; got \[100, 96\]\. The nearest is \[96, 96\]"),
        ([64], r"must be height and width.*got \[64\]\.$"),
        ("64x64", "must be a list of whole numbers, got '64x64'"),
        ([0, 64], r"The nearest is \[32, 64\]"),
        ([64.0, 64], r"must be a list of whole numbers \(64.0 is wrong\)"),
        ([4096, 4096], r"has 16,640 visual tokens, and the model reads 8,192 at most"),
    ],
)
def test_a_size_that_cannot_be_is_refused(size: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load("tiny", size=size)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": 3}, r"must be a hub id, a folder or a GlmImagePipeline, got an int"),
        ({"model": " "}, "model is empty"),
        ({"dtype": "float16"}, "float16' makes black pictures"),
        ({"dtype": "bf17"}, "dtype must be 'auto'"),
        ({"device": "gpu"}, "device must be 'cpu' or 'cuda'"),
        ({"offload": "disk"}, "offload must be 'none' or 'idle', got 'disk'"),
        ({"revision": "v1"}, "revision is for the hub's repositories, and 'tiny' is not one"),
        ({"model": "zai-org/GLM-Nowhere"}, r"'zai-org/GLM-Nowhere' is not a folder here and not in the .* cache"),
    ],
)
def test_a_setting_that_cannot_be_used_is_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        load(**{"model": "tiny", "size": SIZE, **settings})


@pytest.fixture
def cached(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A pipeline in a cache, as its only content, and a hub that is silent."""
    cache = tmp_path / "cache"
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")  # the port that nobody listens on
    reference = cache / "models--org--tiny" / "refs" / "main"
    reference.parent.mkdir(parents=True)
    reference.write_text("a" * 40)
    return Path(shutil.copytree(folder, cache / "models--org--tiny" / "snapshots" / ("a" * 40)))


@pytest.mark.usefixtures("cached")
def test_a_pipeline_of_the_hub_comes_from_the_cache() -> None:
    loaded = load("org/tiny", size=SIZE, local_files_only=True)
    assert (loaded.name, loaded.source) == ("org/tiny", SourceSettings(local_files_only=True))
    with pytest.warns(UserWarning, match=r":9 cannot be reached \(.*refused\); 'org/tiny' comes from the cache"):
        load("org/tiny", size=SIZE)
    with pytest.raises(UsageError, match=r"'org/tiny' is not a folder here and not in .* --revision v2` and"):
        load("org/tiny", size=SIZE, revision="v2", local_files_only=True)


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("vae/*.safetensors", "but without the weights of 'vae'"),
        ("scheduler/*", "but without 'scheduler/scheduler_config.json'"),
        ("model_index.json", r"has no model_index\.json"),
    ],
)
def test_a_pipeline_that_the_cache_has_in_part(cached: Path, missing: str, message: str) -> None:
    for file in cached.glob(missing):
        file.unlink()
    with pytest.raises(UsageError, match=message):
        load("org/tiny", size=SIZE, local_files_only=True)


def without_tokenizer(pipeline: GlmImagePipeline) -> None:
    pipeline.tokenizer = None


def with_an_adapter(pipeline: GlmImagePipeline) -> None:
    get_peft_model(pipeline.vision_language_encoder, LoraConfig(target_modules=["q_proj"]))


def half_precision(pipeline: GlmImagePipeline) -> None:
    pipeline.vae.half()


def mixed(pipeline: GlmImagePipeline) -> None:
    pipeline.transformer.bfloat16()


def heun(pipeline: GlmImagePipeline) -> None:
    pipeline.scheduler = FlowMatchHeunDiscreteScheduler()


def blind(pipeline: GlmImagePipeline) -> None:
    pipeline.vision_language_encoder.model.visual = None


@pytest.mark.parametrize(
    ("broken", "message"),
    [
        (without_tokenizer, "lacks its 'tokenizer'"),
        (with_an_adapter, "has an adapter in it"),
        (half_precision, "autoencoder .* is in float16, in which it overflows"),
        (mixed, "one dtype, and it has transformer bfloat16, vae float32"),
        (heun, "scheduler .* is FlowMatchHeunDiscreteScheduler. Expected FlowMatchEuler"),
        (blind, "has no vision tower, which edits need"),
    ],
)
def test_a_pipeline_object_that_cannot_be_used_is_refused(
    broken: Callable[[GlmImagePipeline], None], message: str
) -> None:
    pipeline = tiny_pipeline()
    broken(pipeline)
    with pytest.raises(UsageError, match=message):
        load(pipeline, size=SIZE, edits=True)


def test_settings_of_loading_are_not_for_an_object() -> None:
    with pytest.raises(UsageError, match="dtype is for models that are loaded by name"):
        load(tiny_pipeline(), size=SIZE, dtype="bfloat16")
