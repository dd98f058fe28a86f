"""Weights that are missing, torn or another model's; nothing is fetched."""

import os
import shutil

import pytest
import torch
from huggingface_hub import constants
from safetensors.torch import save_file
from transformers import AutoTokenizer

from grpokit import UsageError, create
from grpokit.rewards import downloads
from grpokit_preference import files


def refusal(name, params):
    with pytest.raises(UsageError) as caught:
        create("reward", name, params)
    return str(caught.value)


@pytest.fixture(autouse=True)
def _offline(monkeypatch, tmp_path):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))


def test_published_weights_that_are_not_here_say_how_to_come_by_them(tiny):
    assert "The model 'yuvalkirstain/PickScore_v1' is not a folder here and not in the Hugging Face cache" in (
        said := refusal("pickscore", {"tokenizer": tiny.params["pickscore"]["tokenizer"]})
    )
    assert said.startswith("The reward 'pickscore': ")
    assert "`hf download yuvalkirstain/PickScore_v1`" in said
    assert "The tokenizer 'laion/CLIP-ViT-H-14-laion2B-s32B-b79K' is not a folder here" in refusal("pickscore", {})
    for name, repository, file in (
        ("hpsv2", "xswu/HPSv2", "HPS_v2.1_compressed.pt"),
        ("imagereward", "THUDM/ImageReward", "ImageReward.pt"),
    ):
        params = {key: x for key, x in tiny.params[name].items() if key != "weights"}
        said = refusal(name, params)
        assert said.startswith(f"The reward '{name}' needs the file '{file}' of '{repository}'. It is not a file here ")
        assert (
            "and cannot be fetched: HF_HUB_OFFLINE is set. Fetch it on a machine with network by `hf download " in said
        )
        assert said.endswith(
            f"`hf download {repository} {file}` and copy the cache, or give the path of a copy as weights."
        )
        assert "local_files_only" not in said  # which is no parameter


def test_a_hub_that_cannot_be_reached_is_the_reason(tiny, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(downloads, "unreachable", lambda endpoint: "no route to host")
    params = {**tiny.params["hpsv2"], "weights": "some/rater/rater.pt"}
    assert f"cannot be fetched: {constants.ENDPOINT} cannot be reached: no route to host. Fetch it" in refusal(
        "hpsv2", params
    )


@pytest.mark.parametrize(("parameter", "what"), [("model", "model"), ("tokenizer", "tokenizer")])
def test_a_folder_that_is_not_there(tiny, tmp_path, parameter, what):
    assert refusal("pickscore", {**tiny.params["pickscore"], parameter: str(tmp_path / "no")}) == (
        f"The reward 'pickscore': there is no folder '{tmp_path / 'no'}' with a {what}. Give the path of a folder that "
        "save_pretrained wrote, or a hub id."
    )


@pytest.mark.parametrize("name", ["pickscore", "imagereward"])
def test_a_tokenizer_of_another_model(tiny, tmp_path, name):
    """Its tokens would be looked up beyond the end of the embeddings, at the first prompt that has one."""
    tokenizer = AutoTokenizer.from_pretrained(tiny.params[name]["tokenizer"])
    own = len(tokenizer)
    tokenizer.add_tokens([f"<word {i}>" for i in range(300)])
    tokenizer.save_pretrained(tmp_path / "larger")
    known = {"pickscore": 190, "imagereward": 90}[name]
    params = {**tiny.params[name], "tokenizer": str(tmp_path / "larger")}
    assert refusal(name, params) == (
        f"The reward '{name}': the tokenizer '{tmp_path / 'larger'}' has {own + 300} tokens, and the model knows "
        f"{known}. Name the one that the model was trained with."
    )
    tokenizer = AutoTokenizer.from_pretrained(tiny.params[name]["tokenizer"])
    tokenizer.pad_token = None
    tokenizer.save_pretrained(tmp_path / "unpadded")
    params = {**tiny.params[name], "tokenizer": str(tmp_path / "unpadded")}
    assert "unpadded' has no token for padding. Name the one" in refusal(name, params)


def test_a_cached_file_of_the_hub_is_taken(tiny, tmp_path):
    cached = tmp_path / "cache" / "models--some--rater"
    (cached / "refs").mkdir(parents=True)
    (cached / "refs" / "main").write_text("0" * 40)
    place = cached / "snapshots" / ("0" * 40) / "files" / "rater.safetensors"
    place.parent.mkdir(parents=True)
    save_file(tiny.state, place)
    state = files.weights("some/rater/files/rater.safetensors", reward="imagereward")
    assert state.keys() == tiny.state.keys()


@pytest.mark.parametrize("name", ["hpsv2", "imagereward"])
def test_files_that_hold_something_else(tiny, tmp_path, name):
    place = tmp_path / "other.pt"
    params = {**tiny.params[name], "weights": str(place)}
    assert f"The reward '{name}': there is no file '{place}' (the parameter weights). Give the path" in refusal(
        name, params
    )
    place.write_bytes(b"torn")
    assert f"'{place}' cannot be read as weights of torch or safetensors (" in refusal(name, params)
    torch.save({"x": Trap(str(tmp_path / "ran"))}, place)
    assert "(UnpicklingError)" in refusal(name, params)
    assert not (tmp_path / "ran").exists()
    torch.save([1], place)
    assert f"expected a state dict in '{place}', got list." in refusal(name, params)
    torch.save({"x": torch.zeros(2)}, place)
    assert f"'{place}' does not hold the weights of " in refusal(name, params)


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_a_weight_that_is_missing_or_has_another_shape_is_named(tiny, tmp_path):
    key = "blip.text_encoder.encoder.layer.1.crossattention.self.key.weight"
    params = {**tiny.params["imagereward"], "weights": str(tmp_path / "x.pt")}
    torch.save({k: x for k, x in tiny.state.items() if k != key}, tmp_path / "x.pt")
    own = key.replace("blip.text_encoder", "text")
    assert f"'{own}' is not there, expected (128, 64) (1 of " in refusal("imagereward", params)
    torch.save({**tiny.state, key: torch.zeros(128, 65)}, tmp_path / "x.pt")
    assert f"'{own}' has the shape (128, 65), expected (128, 64) (1 of " in refusal("imagereward", params)


def test_a_model_without_a_weight_is_refused(tiny, tmp_path):
    """transformers would start it at random."""
    folder = tmp_path / "half"
    shutil.copytree(tiny.params["pickscore"]["model"], folder)
    state = {k: x.contiguous() for k, x in tiny.clip.state_dict().items() if k != "visual_projection.weight"}
    save_file(state, folder / "model.safetensors", metadata={"format": "pt"})
    assert refusal("pickscore", {**tiny.params["pickscore"], "model": str(folder)}) == (
        f"The reward 'pickscore': the model '{folder}' lacks 1 weight of a CLIPModel, such as "
        "'visual_projection.weight'. Name a model of that class."
    )
    (folder / "model.safetensors").write_bytes(b"torn")
    assert "model.safetensors' is damaged" in refusal("pickscore", {**tiny.params["pickscore"], "model": str(folder)})


def test_models_of_open_clip_that_do_not_fit(tiny):
    params = tiny.params["hpsv2"]
    assert refusal("hpsv2", {**params, "model": "ViT-H-15"}).startswith(
        "hpsv2: open_clip has no model 'ViT-H-15' (did you mean 'ViT-H-1"
    )
    assert refusal("hpsv2", {**params, "model": "coca_base"}) == (
        "hpsv2: 'coca_base' is no plain CLIP, as the published ViT-H-14 is."
    )
