"""Where weights come from, and the one message for each way in which they cannot be had."""

import errno
import hashlib
import json
import os
import runpy
import shutil
import socket
import time
import zipfile
from pathlib import Path

import huggingface_hub.constants
import open_clip
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from grpokit import Prompt, Sample, UsageError
from grpokit.rewards import downloads
from grpokit_clip import weights
from grpokit_clip.reward import AestheticReward, ClipScoreReward

NOBODY = "http://127.0.0.1:9"  # where conftest sends all requests
REFUSED = f"[Errno {errno.ECONNREFUSED}] {os.strerror(errno.ECONNREFUSED)}"
ROW = [Sample(prompt=Prompt(text="a cat"), output=Image.linear_gradient("L"), group=0)]
REMEDY = (
    "Give the file open_clip_model.safetensors or open_clip_pytorch_model.bin of the model's repository on the Hugging "
    "Face hub as weights_path, or leave that out."
)
FOLDER_REMEDY = (
    "Give a folder in open_clip's local form: open_clip_config.json with model_cfg and preprocess_cfg, and the weights "
    "beside it, as a repository of open_clip on the Hugging Face hub has them."
)


@pytest.fixture
def params(tiny):
    return {"model": "tiny-clip", "pretrained": None, "weights_path": tiny.torch_file, "device": "cpu"}


def refusal(build, *args, **params) -> str:
    with pytest.raises(UsageError) as refused:
        build(*args, **params)
    return str(refused.value)


# published weights: the Hugging Face cache, and what fills it


@pytest.fixture
def published(monkeypatch, served, tiny, ask_at):
    """The tiny model as a repository on a hub of this machine, under the tag "mine"."""
    record = {"hf_hub": "nobody/tiny/", "quick_gelu": False}
    monkeypatch.setitem(open_clip.pretrained._PRETRAINED, "tiny-clip", {"mine": record})
    files = served.folder / "nobody" / "tiny" / "resolve" / "main"
    files.mkdir(parents=True)
    shutil.copy(tiny.safetensors_file, files / "open_clip_model.safetensors")
    ask_at(served.url)
    return {"model": "tiny-clip", "pretrained": "mine", "device": "cpu"}


def test_published_weights_are_fetched_once(published, served, params, capsys, tmp_path, ask_at):
    wanted = ClipScoreReward(**params)(ROW)
    assert ClipScoreReward(**published)(ROW) == wanted
    first = capsys.readouterr().err.splitlines()[0]
    assert first == (
        f"grpokit-clip: fetching {served.url}/nobody/tiny (open_clip_model.safetensors) to '{tmp_path / 'hub-cache'}'"
    )
    assert "GET /nobody/tiny/resolve/main/open_clip_model.safetensors" in served.asked
    del served.asked[:]
    ask_at(NOBODY)  # what is in the cache needs nobody
    assert ClipScoreReward(**published)(ROW) == wanted
    assert (served.asked, capsys.readouterr().err) == ([], "")


def test_published_weights_that_the_hub_lacks(published, served):
    (served.folder / "nobody" / "tiny" / "resolve" / "main" / "open_clip_model.safetensors").unlink()
    said = refusal(ClipScoreReward, **published)
    assert f"fetching it from {served.url} failed: Failed to download file (open_clip_pytorch_model.bin) for" in said
    assert "Last error: 404 Client Error" in said


@pytest.mark.parametrize(("name", "build"), [("aesthetic", AestheticReward), ("clip-score", ClipScoreReward)])
@pytest.mark.parametrize("offline", [True, False])
def test_missing_weights_say_which_file_where_and_how_at_once(monkeypatch, tmp_path, tiny, name, build, offline):
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", offline)
    start = time.perf_counter()
    said = refusal(build, device="cpu", **({"head_path": tiny.head} if name == "aesthetic" else {}))
    assert time.perf_counter() - start < 5
    code = "import open_clip; open_clip.download_pretrained(open_clip.get_pretrained_cfg('ViT-L-14', 'openai'))"
    assert said == (
        f"The reward '{name}' needs the weights 'openai' of the CLIP model 'ViT-L-14', the file "
        "open_clip_model.safetensors or open_clip_pytorch_model.bin of timm/vit_large_patch14_clip_224.openai. Looked "
        f"for it in '{tmp_path / 'hub-cache'}' (the Hugging Face cache), and there is no file; fetching it from "
        f"{NOBODY} failed: {'HF_HUB_OFFLINE is set' if offline else REFUSED}. Fetch it into the cache with: "
        f'python -c "{code}" -- or copy it from another machine and give its path as weights_path.'
    )


def test_a_hub_that_never_answers_is_left_after_a_while(monkeypatch, ask_at):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        ask_at(f"http://127.0.0.1:{silent.getsockname()[1]}")
        monkeypatch.setattr(downloads, "PATIENCE", 0.2)
        start = time.perf_counter()
        assert "failed: timed out. Fetch it" in refusal(ClipScoreReward, device="cpu")
        assert time.perf_counter() - start < 5


def test_the_command_of_the_message_fetches_the_file(served, tmp_path, ask_at):
    """As it is printed, for the default model, from a hub on this machine; in this process, which has open_clip."""
    command = refusal(ClipScoreReward, device="cpu").partition('python -c "')[2].partition('"')[0]
    repository = "timm/vit_large_patch14_clip_224.openai"
    (served.folder / repository / "resolve" / "main").mkdir(parents=True)
    (served.folder / repository / "resolve" / "main" / "open_clip_model.safetensors").write_bytes(b"weights")
    ask_at(served.url)
    (tmp_path / "command.py").write_text(command)
    runpy.run_path(str(tmp_path / "command.py"), run_name="__main__")
    ask_at(NOBODY)
    found = weights.clip_file("ViT-L-14", "openai", weights.recipe("ViT-L-14", "openai"), reward="clip-score")
    assert found.read_bytes() == b"weights"


def test_the_recipe_names_two_files_of_which_open_clip_takes_the_safer(published, served, tiny, params, ask_at):
    files = served.folder / "nobody" / "tiny" / "resolve" / "main"
    (files / "open_clip_model.safetensors").unlink()
    shutil.copy(tiny.torch_file, files / "open_clip_pytorch_model.bin")
    wanted = ClipScoreReward(**params)(ROW)
    assert ClipScoreReward(**published)(ROW) == wanted
    ask_at(NOBODY)
    assert ClipScoreReward(**published)(ROW) == wanted


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        (
            {"model": "ViT-L-41"},
            r"^open_clip has no model 'ViT-L-41' \(did you mean 'ViT-L-14'\?\)\. It knows \d+ of them: python -c ",
        ),
        (
            {"pretrained": "opnai"},
            r"^The parameter pretrained: open_clip has no weights 'opnai' for the model 'ViT-L-14' \(did you mean "
            r"'openai'\?\)\. It has: openai, laion400m_e31, .*For weights of your own give weights_path, and null as",
        ),
        (
            {"pretrained": None},
            r"^clip-score: pretrained is null, so that the parameter weights_path must name a file or a folder with "
            r"weights of the model 'ViT-L-14'\.$",
        ),
    ],
)
def test_unknown_models_and_weights_name_the_nearest(changed, said):
    with pytest.raises(UsageError, match=said):
        ClipScoreReward(**{"model": "ViT-L/14", "device": "cpu", **changed})


# a file or a folder of one's own


@pytest.mark.parametrize("pretrained", ["openai", None])
def test_a_weights_path_without_a_file_is_named(tmp_path, pretrained):
    which = "'openai' of" if pretrained else "of"
    assert refusal(ClipScoreReward, weights_path=str(tmp_path / "gone"), pretrained=pretrained, device="cpu") == (
        f"The reward 'clip-score' needs the weights {which} the CLIP model 'ViT-L-14'. Looked for them at "
        f"'{tmp_path / 'gone'}' (as the parameter weights_path says), and there is no file or folder. Correct the "
        "path, or leave it out: then the weights are taken from the Hugging Face cache, and fetched if they are not "
        "there."
    )


@pytest.mark.parametrize("suffix", ["pt", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"torn", b"PK\x03\x04 torn", "half"])
def test_a_torn_file_is_refused(tmp_path, params, tiny, suffix, content):
    if content == "half":
        whole = Path(tiny.torch_file if suffix == "pt" else tiny.safetensors_file).read_bytes()
        content = whole[: len(whole) // 2]
    place = tmp_path / f"torn.{suffix}"
    place.write_bytes(content)
    said = refusal(ClipScoreReward, **{**params, "weights_path": str(place)})
    kind = said.partition("(")[2].partition(")")[0]
    assert kind.isidentifier()
    assert said == (
        f"The file '{place}' cannot be read as weights of torch or safetensors ({kind}): it is torn, or another kind "
        f"of file. {REMEDY}"
    )


def test_torn_files_in_the_caches_are_to_be_deleted(published, params, tmp_path):
    ClipScoreReward(**published)
    cached = next((tmp_path / "hub-cache").rglob("open_clip_model.safetensors"))
    cached.write_bytes(b"torn")
    assert f"it is torn, or another kind of file. Delete it. {REMEDY}" in refusal(ClipScoreReward, **published)
    head = tmp_path / "torch-home" / "hub" / "checkpoints" / weights.HEAD_FILE
    head.parent.mkdir(parents=True)
    head.write_bytes(b"torn")
    said = refusal(AestheticReward, **params, head_path=str(head))
    assert f"it is torn, or another kind of file than {weights.HEAD_FILE}. Delete it. Fetch it into" in said


def test_a_file_with_code_is_not_run(tmp_path, params):
    torch.save({"x": Trap(str(tmp_path / "ran"))}, tmp_path / "trap.pt")
    said = refusal(ClipScoreReward, **{**params, "weights_path": str(tmp_path / "trap.pt")})
    assert "trap.pt' cannot be read as weights of torch or safetensors (UnpicklingError)" in said
    assert "weights_only" not in said  # torch's advice is to load it unsafely
    assert not (tmp_path / "ran").exists()


class Trap:
    """Makes a folder when it is unpickled."""

    def __init__(self, place):
        self.place = place

    def __reduce__(self):
        return os.mkdir, (self.place,)


def test_a_torchscript_archive_is_named(tmp_path, params):
    with zipfile.ZipFile(tmp_path / "ViT.pt", "w") as archive:
        archive.writestr("ViT/constants.pkl", b"")
    assert refusal(ClipScoreReward, **{**params, "weights_path": str(tmp_path / "ViT.pt")}) == (
        f"The file '{tmp_path / 'ViT.pt'}' is a TorchScript archive, the form in which OpenAI published CLIP; it holds "
        f"code beside weights and is not loaded. {REMEDY}"
    )


def test_files_of_something_else_are_refused(tmp_path, params, tiny):
    place = str(tmp_path / "other.pt")
    params["weights_path"] = place
    torch.save([1, 2], place)
    assert refusal(ClipScoreReward, **params) == (
        f"The file '{place}' holds no weights of CLIP: expected a state dict, got list. {REMEDY}"
    )
    torch.save({"layers.0.weight": torch.zeros(2)}, place)
    said = refusal(ClipScoreReward, **params)
    assert said.startswith(f"'{place}' does not hold weights that open_clip can load as the CLIP model 'tiny-clip': E")
    assert "Missing key(s) in state_dict" in said
    assert said.endswith(f"... {REMEDY}") or said.endswith(f". {REMEDY}")
    assert len(said) < 700
    state = torch.load(tiny.torch_file)
    torch.save({**state, "ln_final.bias": torch.zeros(65)}, place)
    assert "size mismatch for ln_final.bias" in refusal(ClipScoreReward, **params)


def test_positions_of_another_picture_size_are_refused(tmp_path, params, tiny):
    """open_clip would stretch them without a word."""
    state = torch.load(tiny.torch_file)
    state["visual.positional_embedding"] = torch.zeros(1 + 6 * 6, 64)
    for place, save in ((tmp_path / "large.pt", torch.save), (tmp_path / "large.safetensors", save_file)):
        save(state, place)
        assert refusal(ClipScoreReward, **{**params, "weights_path": str(place)}) == (
            f"The file '{place}' does not hold weights of the CLIP model 'tiny-clip': 'visual.positional_embedding' "
            "has the shape (37, 64) there, expected (17, 64): another picture size, or another length of texts. Name "
            "the model that the file was saved from."
        )


def test_a_checkpoint_of_open_clips_training_is_read(tmp_path, params, tiny):
    state = {f"module.{name}": x for name, x in torch.load(tiny.torch_file).items()}
    torch.save({"epoch": 3, "name": "run", "state_dict": state}, tmp_path / "epoch_3.pt")
    again = ClipScoreReward(**{**params, "weights_path": str(tmp_path / "epoch_3.pt")})
    assert again(ROW) == ClipScoreReward(**params)(ROW)


def test_folders_that_cannot_be_used(tmp_path, tiny):
    folder = tmp_path / "folder"
    folder.mkdir()
    params = {"weights_path": str(folder), "device": "cpu"}
    start = f"The folder '{folder}' (the parameter weights_path) has no"
    assert refusal(ClipScoreReward, **params) == f"{start} file open_clip_config.json. {FOLDER_REMEDY}"
    config = json.loads(Path(tiny.folder, "open_clip_config.json").read_text())
    (folder / "open_clip_config.json").write_text(json.dumps(config))
    assert refusal(ClipScoreReward, **params) == (  # open_clip would start at random
        f"{start} weights, such as open_clip_model.safetensors or open_clip_pytorch_model.bin. {FOLDER_REMEDY}"
    )
    torch.save({"x": Trap(str(tmp_path / "ran"))}, folder / "open_clip_pytorch_model.bin")
    named = f"'{folder}' does not hold weights that open_clip can load as the model of its open_clip_config.json: "
    said = refusal(ClipScoreReward, **params)
    assert said == (
        f"{named}the file cannot be read with weights_only, so that it is torn or holds more than weights. "
        f"{FOLDER_REMEDY}"
    )
    assert not (tmp_path / "ran").exists()
    shutil.copy(tiny.torch_file, folder / "open_clip_pytorch_model.bin")
    assert len(ClipScoreReward(**params)(ROW)) == 1
    for text in ("{", json.dumps(config["model_cfg"])):
        (folder / "open_clip_config.json").write_text(text)
        assert refusal(ClipScoreReward, **params).startswith(f"{named}Could not load valid config from specified")


# the aesthetic predictor


def test_a_missing_predictor_is_fetched_into_torchs_cache_once(served, monkeypatch, tiny, tmp_path, capsys):
    params = {"weights_path": tiny.folder, "device": "cpu"}
    content = Path(tiny.head).read_bytes()
    (served.folder / weights.HEAD_FILE).write_bytes(content)
    monkeypatch.setattr(weights, "HEAD_SOURCE", f"{served.url}/")
    monkeypatch.setattr(weights, "HEAD_SHA256", hashlib.sha256(content).hexdigest())
    wanted = AestheticReward(**params, head_path=tiny.head)(ROW)
    assert AestheticReward(**params)(ROW) == wanted
    place = tmp_path / "torch-home" / "hub" / "checkpoints" / weights.HEAD_FILE
    assert place.read_bytes() == content
    assert capsys.readouterr().err == (
        f"grpokit-clip: fetching {served.url}/sac+logos+ava1-l14-linearMSE.pth to '{place}'\n"
    )
    assert served.asked == [f"{method} /{weights.HEAD_FILE}" for method in ("HEAD", "GET")]
    assert AestheticReward(**params)(ROW) == wanted
    assert len(served.asked) == 2


def test_offline_nobody_is_asked_for_the_predictor(served, monkeypatch, tiny):
    monkeypatch.setattr(weights, "HEAD_SOURCE", f"{served.url}/")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    assert "fetching it failed: HF_HUB_OFFLINE is set. Fetch" in refusal(AestheticReward, device="cpu")
    assert served.asked == []


def test_a_predictor_with_another_hash_is_not_kept(served, monkeypatch, tiny, tmp_path):
    (served.folder / weights.HEAD_FILE).write_bytes(b"another file")
    monkeypatch.setattr(weights, "HEAD_SOURCE", f"{served.url}/")
    said = refusal(AestheticReward, weights_path=tiny.folder, device="cpu")
    assert f'fetching it failed: invalid hash value (expected "{weights.HEAD_SHA256}", got' in said
    assert list((tmp_path / "torch-home" / "hub" / "checkpoints").iterdir()) == []
    (served.folder / weights.HEAD_FILE).unlink()
    said = refusal(AestheticReward, weights_path=tiny.folder, device="cpu")
    assert "fetching it failed: the server says 404 File not found. Fetch it into the cache with" in said


def test_a_predictor_that_cannot_be_had_says_which_file_where_and_how(tiny, tmp_path):
    remedy = (
        'Fetch it into the cache with: python -c "from grpokit_clip import weights; weights.head_file(None)" -- or '
        f"fetch {NOBODY}/{weights.HEAD_FILE} on another machine and give the copy's path as head_path."
    )
    place = tmp_path / "torch-home" / "hub" / "checkpoints" / weights.HEAD_FILE
    assert refusal(AestheticReward, device="cpu") == (  # before the large weights, which are not there either
        f"The reward 'aesthetic' needs the weights of its predictor, the file {weights.HEAD_FILE}. Looked for it at "
        f"'{place}' (in torch's download cache), and there is no file; fetching it failed: {REFUSED}. {remedy}"
    )
    place = tmp_path / "gone.pth"
    assert refusal(AestheticReward, weights_path=tiny.folder, head_path=str(place), device="cpu") == (
        f"The reward 'aesthetic' needs the weights of its predictor, the file {weights.HEAD_FILE}. Looked for it at "
        f"'{place}' (as the parameter head_path says), and there is no file. {remedy}"
    )


def test_the_published_predictor_is_for_one_model(params):
    assert refusal(AestheticReward, **params) == (
        "aesthetic: the published predictor was trained on embeddings of the model ViT-L-14 with the weights openai, "
        "and says nothing about those of 'tiny-clip' with None. Leave model and pretrained out, or give a predictor "
        "for yours as head_path."
    )


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
@pytest.mark.parametrize("content", [b"", b"no checkpoint", b"torn", "half"])
def test_a_torn_predictor_is_refused(tmp_path, params, tiny, suffix, content):
    if content == "half":
        whole = Path(tiny.head if suffix == "pth" else tiny.safe_head).read_bytes()
        content = whole[: len(whole) // 2]
    (tmp_path / f"torn.{suffix}").write_bytes(content)
    said = refusal(AestheticReward, **params, head_path=str(tmp_path / f"torn.{suffix}"))
    assert f"torn.{suffix}' cannot be read as a checkpoint of torch or safetensors (" in said
    assert f"): it is torn, or another kind of file than {weights.HEAD_FILE}. Fetch it into the cache with: " in said


def test_a_predictor_with_code_is_not_run(tmp_path, params):
    torch.save({"x": Trap(str(tmp_path / "ran"))}, tmp_path / "trap.pth")
    said = refusal(AestheticReward, **params, head_path=str(tmp_path / "trap.pth"))
    assert "trap.pth' cannot be read as a checkpoint of torch or safetensors (UnpicklingError)" in said
    assert not (tmp_path / "ran").exists()


def test_predictors_of_something_else_are_refused(tmp_path, params, tiny):
    place = tmp_path / "other.pth"
    whole = torch.load(tiny.head)

    def said(state):
        torch.save(state, place)
        return refusal(AestheticReward, **params, head_path=str(place))

    start = f"The file '{place}' is not an aesthetic predictor: expected "
    dicts = (
        "a state dict with layers.0, layers.2, layers.4, layers.6, layers.7 (as in sac+logos+ava1-l14-linearMSE.pth)"
    )
    assert said([1]).startswith(f"{start}{dicts}, and 'layers.0.weight' is not in it. Fetch it")
    without = {name: x for name, x in whole.items() if name != "layers.6.bias"}
    assert said(without).startswith(f"{start}{dicts}, and 'layers.6.bias' is not in it. Fetch it")
    broken = {**whole, "layers.4.weight": torch.zeros(8, 17)}
    assert said(broken).startswith(
        f"{start}linear layers that follow one another and end in one number, got weights of the shapes (32, 64), "
        "(16, 32), (8, 17), (4, 8), (1, 4). Fetch it"
    )
    assert "end in one number" in said({**whole, "layers.7.weight": torch.zeros(2, 4), "layers.7.bias": torch.zeros(2)})
    assert said({**whole, "layers.0.weight": torch.zeros(32, 768)}) == (
        f"The aesthetic predictor '{place}' is made for embeddings of 768 numbers, and the CLIP model gives 64. The "
        "published predictor belongs to the model ViT-L-14 with the weights openai; for another model give a predictor "
        "that was trained on its embeddings as head_path."
    )
    assert said({**whole, "layers.7.bias": torch.tensor([torch.nan])}) == (
        f"The aesthetic predictor '{place}' has weights that are not finite. Take another file."
    )
