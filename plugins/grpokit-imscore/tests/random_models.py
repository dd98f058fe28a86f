"""Random weights of imscore's real classes, and the scores that the classes give by hand.

The environment that has imscore runs this file, and no grpokit is there. The classes begin from models of the hub. A
hub cache with tiny ones stands for these; the widths that imscore's own layers take for granted are the real ones.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import open_clip
import sentencepiece
import torch
import transformers
from einops import rearrange
from safetensors.torch import save_file
from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

SMALL = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
COMMIT = "0" * 40
CLIP_H, CLIP_L, CLIP_336 = (
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K",
    "openai/clip-vit-large-patch14",
    "openai/clip-vit-large-patch14-336",
)
QWEN = "Qwen/Qwen2-VL-7B-Instruct"
TEMPLATE = (
    "{% for message in messages %}{% for part in message.content %}{% if part.type == 'image' %}"
    "<|vision_start|><|image_pad|><|vision_end|>{% else %}{{ part.text }}{% endif %}{% endfor %}{% endfor %}"
)


def in_hub(hub: Path, repository: str) -> Path:
    """The folder in a hub cache for a repository's files."""
    place = hub / f"models--{repository.replace('/', '--')}"
    files = place / "snapshots" / COMMIT
    files.mkdir(parents=True, exist_ok=True)
    (place / "refs").mkdir(exist_ok=True)
    (place / "refs" / "main").write_text(COMMIT)
    return files


def clip(folder: Path, width: int) -> None:
    letters = [chr(code) for code in range(33, 127)]
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary, merges = _vocabulary(folder, words)
    tokenizer = transformers.CLIPTokenizer(vocabulary, merges, model_max_length=77)
    transformers.CLIPProcessor(transformers.CLIPImageProcessor(), tokenizer).save_pretrained(folder)
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    config = transformers.CLIPConfig(
        text_config={**SMALL, **ends, "vocab_size": len(words)},
        vision_config={**SMALL, "patch_size": 32, "projection_dim": width},
        projection_dim=width,
    )
    transformers.CLIPModel(config).save_pretrained(folder)


def _vocabulary(folder: Path, words: list[str]) -> tuple[str, str]:
    vocabulary, merges = folder / "vocab.json", folder / "merges.txt"
    vocabulary.write_text(json.dumps({word: place for place, word in enumerate(words)}))
    merges.write_text("#version: 0.2\n")
    return str(vocabulary), str(merges)


def clip_336(folder: Path) -> None:
    config = transformers.CLIPVisionConfig(**{**SMALL, "hidden_size": 1024}, image_size=336, patch_size=84)
    transformers.CLIPVisionModel(config).save_pretrained(folder)
    transformers.CLIPImageProcessor(size={"shortest_edge": 336}, crop_size=336).save_pretrained(folder)


def bert(folder: Path) -> None:
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz"]
    (folder / "vocab.txt").write_text("\n".join([*words, *(f"##{word}" for word in words[5:])]))
    transformers.BertTokenizer(str(folder / "vocab.txt")).save_pretrained(folder)


def pieces(folder: Path) -> str:
    """A vocabulary of sentencepiece, of letters alone."""
    text = folder / "text.txt"
    text.write_text("Does this figure show a cat? Please answer yes or no. ASSISTANT USER Yes " * 20)
    ends = {"pad_id": 0, "eos_id": 1, "unk_id": 2, "bos_id": -1}
    sentencepiece.SentencePieceTrainer.train(
        input=str(text), model_prefix=str(folder / "spiece"), model_type="char", vocab_size=30, minloglevel=2, **ends
    )
    return str(folder / "spiece.model")


def t5(folder: Path) -> None:
    transformers.T5Tokenizer(pieces(folder)).save_pretrained(folder)
    sizes = {"d_model": 4096, "d_kv": 8, "d_ff": 16, "num_layers": 1, "num_heads": 2}
    config = transformers.T5Config(**sizes, feed_forward_proj="gated-gelu", decoder_start_token_id=0)
    transformers.T5ForConditionalGeneration(config).save_pretrained(folder)


def siglip(folder: Path) -> None:
    tokenizer = transformers.SiglipTokenizer(pieces(folder), model_max_length=64)
    transformers.SiglipProcessor(transformers.SiglipImageProcessor(), tokenizer).save_pretrained(folder)
    config = transformers.SiglipConfig(
        text_config={**SMALL, "vocab_size": 40}, vision_config={**SMALL, "patch_size": 32}
    )
    transformers.SiglipModel(config).save_pretrained(folder)


def dinov2(folder: Path) -> None:
    transformers.Dinov2Model(transformers.Dinov2Config(**SMALL, image_size=224)).save_pretrained(folder)
    size, crop = {"shortest_edge": 256}, {"height": 224, "width": 224}
    transformers.BitImageProcessor(size=size, crop_size=crop).save_pretrained(folder)


def qwen(folder: Path) -> transformers.Qwen2VLConfig:
    marks = [f"<|{word}|>" for word in ("im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad")]
    files = _vocabulary(folder, [*bytes_to_unicode().values()])
    transformers.Qwen2Tokenizer(*files, additional_special_tokens=marks).save_pretrained(folder)
    tokenizer = transformers.Qwen2TokenizerFast.from_pretrained(folder)
    pixels = transformers.Qwen2VLImageProcessor()
    transformers.Qwen2VLProcessor(pixels, tokenizer, chat_template=TEMPLATE).save_pretrained(folder)
    place_of = tokenizer.convert_tokens_to_ids
    return transformers.Qwen2VLConfig(
        **{**SMALL, "hidden_size": 3584, "num_attention_heads": 28, "num_key_value_heads": 4},
        vocab_size=300,
        rope_scaling={"type": "mrope", "mrope_section": [16, 24, 24]},
        vision_config={"depth": 2, "embed_dim": 32, "hidden_size": 3584, "num_heads": 2},
        vision_start_token_id=place_of("<|vision_start|>"),
        vision_end_token_id=place_of("<|vision_end|>"),
        image_token_id=place_of("<|image_pad|>"),
        video_token_id=place_of("<|video_pad|>"),
    )


def begins_from(name: str, root: Path) -> dict[str, Any]:
    """Write what a model begins from; returns the arguments of its class."""
    hub = root / "hub"
    own = root / "begin"
    own.mkdir()
    arguments: dict[str, Any] = {}
    if name in ("mps", "pickscore"):
        clip(in_hub(hub, CLIP_H), width=1024)
    if name == "pickscore":
        clip(in_hub(hub, "yuvalkirstain/PickScore_v1"), width=1024)
    elif name == "hpsv21":
        save_file(open_clip.create_model("ViT-H-14").state_dict(), in_hub(hub, CLIP_H) / "open_clip_model.safetensors")
    elif name == "laion-aesthetic":
        clip(in_hub(hub, CLIP_L), width=768)
    elif name in ("imreward", "cyclereward", "evalmuse"):
        bert(in_hub(hub, "bert-base-uncased"))
    elif name == "vqascore":
        t5(in_hub(hub, "google/flan-t5-xxl"))
        clip_336(in_hub(hub, CLIP_336))
    elif name == "hpsv3":
        arguments = {"config": qwen(in_hub(hub, QWEN))}
    elif "siglip" in name:
        siglip(own)
        arguments = {"tag": str(own)}
    elif "dinov2" in name:
        dinov2(own)
        arguments = {"tag": str(own)}
    elif "clip" in name:
        clip(own, width=64)
        arguments = {"tag": str(own)}
    return arguments


def main(name: str, scorer: str, root: str, text: str) -> None:
    """Write random weights of a model to the folder `weights`, and scores of `pictures.npy` to `scores.json`."""
    torch.manual_seed(0)
    place = Path(root)
    arguments = begins_from(name, place)
    folder, _, class_name = scorer.partition(":")
    kind = getattr(importlib.import_module(f"imscore.{folder}.model"), class_name)
    kind(**arguments).save_pretrained(place / "weights")
    model = kind.from_pretrained(str(place / "weights")).eval()
    pixels = rearrange(torch.tensor(np.load(place / "pictures.npy")), "b h w c -> b c h w") / 255.0
    with torch.no_grad():
        if name == "vqascore":  # which gives one score for a whole batch
            scores = torch.stack([model.score(picture[None], [text]) for picture in pixels])
        else:
            scores = model.score(pixels, [text] * len(pixels))
    (place / "scores.json").write_text(json.dumps(scores.flatten().tolist()))


if __name__ == "__main__":
    main(*sys.argv[1:])
