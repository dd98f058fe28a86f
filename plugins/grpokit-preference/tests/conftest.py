"""Tiny random models of the real classes in the forms of the published files; no network."""

import json
from dataclasses import dataclass
from pathlib import Path

import open_clip
import pytest
import torch
from transformers import BertTokenizer, CLIPConfig, CLIPModel, CLIPTokenizer

WIDTH, READ, PATCH, PLACES = 64, 128, 8, 16
"""Of the tiny ImageReward: width of the picture's half and of the text's, pixels of a patch, patches of a picture."""

_OPEN_CLIP = {
    "embed_dim": 32,
    "vision_cfg": {"image_size": 32, "layers": 2, "width": 64, "head_width": 32, "patch_size": 8},
    "text_cfg": {"context_length": 16, "vocab_size": 49408, "width": 64, "heads": 2, "layers": 2},
}


@dataclass(frozen=True, kw_only=True)
class Tiny:
    """The parameters of each reward, and the models that were written to these places."""

    params: dict
    clip: CLIPModel
    open_clip: torch.nn.Module
    state: dict


@pytest.fixture(scope="session")
def tiny(tmp_path_factory):
    place = tmp_path_factory.mktemp("preference")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        clip = _clip(place / "clip")
        (place / "tiny-hps.json").write_text(json.dumps(_OPEN_CLIP))
        open_clip.add_model_config(place / "tiny-hps.json")
        hps = open_clip.create_model("tiny-hps", output_dict=True)
        state = _image_reward()
    _words().save_pretrained(place / "bert")
    torch.save({"epoch": 1, "state_dict": hps.state_dict()}, place / "hps.pt")
    torch.save(state, place / "ImageReward.pt")
    params = {
        "pickscore": {"model": str(place / "clip"), "tokenizer": str(place / "clip")},
        "hpsv2": {"model": "tiny-hps", "weights": str(place / "hps.pt")},
        "imagereward": {"weights": str(place / "ImageReward.pt"), "tokenizer": str(place / "bert")},
    }
    params = {name: {**own, "device": "cpu"} for name, own in params.items()}
    return Tiny(params=params, clip=clip, open_clip=hps.eval(), state=state)


def _clip(folder: Path):
    letters = [chr(x) for x in range(33, 127)]
    words = [*letters, *(f"{x}</w>" for x in letters), "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {word: i for i, word in enumerate(words)}
    CLIPTokenizer(vocab=vocabulary, merges=[]).save_pretrained(folder)
    small = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    config = CLIPConfig(
        text_config={**small, **ends, "vocab_size": len(words), "max_position_embeddings": 24},
        vision_config={**small, "image_size": 32, "patch_size": 8},
        projection_dim=24,
        logit_scale_init_value=4.4,
    )
    model = CLIPModel(config).eval()
    for x in model.parameters():
        if x.ndim > 1:
            x.data.mul_(4.0)  # scores as far apart as real ones
    model.save_pretrained(folder)
    return model


def _words():
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz0123456789\"'?"]
    vocabulary = {word: i for i, word in enumerate([*words, *(f"##{x}" for x in words[5:])])}
    return BertTokenizer(vocab=vocabulary)


def _image_reward():
    """A state dict with the names and shapes of the published file, at other sizes."""
    state = {}

    def linear(name, out, width, gain=1.5):
        state[f"{name}.weight"] = torch.randn(out, width) * gain / width**0.5
        state[f"{name}.bias"] = torch.randn(out) * 0.1

    def norm(name, width):
        state[f"{name}.weight"], state[f"{name}.bias"] = 1 + 0.1 * torch.randn(width), 0.1 * torch.randn(width)

    see, read = "blip.visual_encoder", "blip.text_encoder"
    state[f"{see}.cls_token"] = torch.randn(1, 1, WIDTH)
    state[f"{see}.pos_embed"] = torch.randn(1, PLACES + 1, WIDTH)
    state[f"{see}.patch_embed.proj.weight"] = torch.randn(WIDTH, 3, PATCH, PATCH) * 0.1
    state[f"{see}.patch_embed.proj.bias"] = torch.randn(WIDTH) * 0.1
    for i in range(2):
        block = f"{see}.blocks.{i}"
        norm(f"{block}.norm1", WIDTH)
        norm(f"{block}.norm2", WIDTH)
        linear(f"{block}.attn.qkv", 3 * WIDTH, WIDTH)
        linear(f"{block}.attn.proj", WIDTH, WIDTH)
        linear(f"{block}.mlp.fc1", 2 * WIDTH, WIDTH)
        linear(f"{block}.mlp.fc2", WIDTH, 2 * WIDTH)
    norm(f"{see}.norm", WIDTH)
    words = f"{read}.embeddings"
    state[f"{words}.position_ids"] = torch.arange(40)[None]  # which the model does not keep
    state[f"{words}.word_embeddings.weight"] = torch.randn(90, READ)
    state[f"{words}.position_embeddings.weight"] = torch.randn(40, READ)
    norm(f"{words}.LayerNorm", READ)
    for i in range(2):
        layer = f"{read}.encoder.layer.{i}"
        for attention, seen in (("attention", READ), ("crossattention", WIDTH)):
            linear(f"{layer}.{attention}.self.query", READ, READ)
            linear(f"{layer}.{attention}.self.key", READ, seen)
            linear(f"{layer}.{attention}.self.value", READ, seen)
            linear(f"{layer}.{attention}.output.dense", READ, READ)
            norm(f"{layer}.{attention}.output.LayerNorm", READ)
        linear(f"{layer}.intermediate.dense", 2 * READ, READ)
        linear(f"{layer}.output.dense", READ, 2 * READ)
        norm(f"{layer}.output.LayerNorm", READ)
    sizes = {0: (16, READ), 2: (12, 16), 4: (8, 12), 6: (4, 8), 7: (1, 4)}
    for place, (out, width) in sizes.items():
        linear(f"mlp.layers.{place}", out, width)
    return state
