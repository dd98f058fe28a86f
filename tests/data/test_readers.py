"""Every layout in the table of docs/data.md, written to disk and read with the keys of its row."""

from __future__ import annotations

import io
import json
import re
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from PIL import Image

from grpokit import DataError
from grpokit.config import schema
from grpokit.data import check_pictures, read_prompts
from grpokit.runs import build

PAGE = Path(__file__).parents[2] / "docs/data.md"
GREY = {"source": 20, "target": 200}


def png(grey: int) -> bytes:
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (grey,) * 3).save(file, "PNG")
    return file.getvalue()


def pictures(folder: Path, **names: int) -> None:
    folder.mkdir(exist_ok=True)
    for name, grey in names.items():
        (folder / f"{name}.png").write_bytes(png(grey))


def lines(path: Path, *rows: dict[str, Any]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


def beside(here: Path) -> None:
    (here / "prompts.txt").write_text("first\nsecond\n")
    for role, grey in GREY.items():
        (here / f"{role}_images").mkdir()
        for number in (1, 2):
            (here / f"{role}_images/{number}.png").write_bytes(png(grey))


def edits(here: Path) -> None:
    pictures(here, a=GREY["source"], b=GREY["target"])
    lines(here / "edits.jsonl", *({"source": "a.png", "target": "b.png", "prompt": p} for p in ("first", "second")))


def questions(here: Path) -> None:
    pictures(here, a=GREY["source"])
    rows = ({"prompt": p, "image": "a.png", "target": "two", "source": "a book"} for p in ("first", "second"))
    lines(here / "questions.jsonl", *rows)


def to_draw(here: Path) -> None:
    pictures(here, a=GREY["target"])
    lines(here / "train.jsonl", {"image": "a.png", "prompt": "first"}, {"image": "a.png", "prompt": "second"})


def folder(here: Path) -> None:
    pictures(here / "photos", a=GREY["target"])
    (here / "photos/metadata.csv").write_text("file_name,text\na.png,first\na.png,second\n")


def captions(here: Path) -> None:
    for number, (text, ending) in enumerate((("first", "txt"), ("second", "caption"))):
        part = here / f"cats/10_cat{number}"
        part.mkdir(parents=True)
        (part / "a.png").write_bytes(png(GREY["target"]))
        (part / f"a.{ending}").write_text(f"{text}\n")


def conversations(here: Path) -> None:
    before = [("system", "Be brief."), ("user", "What is 1 + 1?"), ("assistant", "2")]
    asked = [[{"role": role, "content": text} for role, text in [*before, ("user", p)]] for p in ("first", "second")]
    lines(here / "chats.jsonl", *({"prompt": messages} for messages in asked))


def parquet(here: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = {"text": ["first", "second"], "image": [{"bytes": png(GREY["target"]), "path": None}] * 2}
    features = datasets.Features({"text": datasets.Value("string"), "image": datasets.Image()})
    datasets.Dataset.from_dict(rows, features=features).to_parquet(here / "train.parquet")


def shards(here: Path) -> None:
    (here / "shards").mkdir()
    for number, text in enumerate(("first", "second")):
        with tarfile.open(here / f"shards/{number}.tar", "w") as shard:
            add(shard, "some/folder/0001.jpg", png(GREY["target"]))
            add(shard, "some/folder/0001.json", json.dumps({"prompt": text}).encode())


def add(shard: tarfile.TarFile, name: str, content: bytes) -> None:
    member = tarfile.TarInfo(name)
    member.size = len(content)
    shard.addfile(member, io.BytesIO(content))


def dataset(here: Path) -> None:
    datasets = pytest.importorskip("datasets")
    features = {"edit_prompt": datasets.Value("string")}
    features |= {name: datasets.Image() for name in ("original_image", "edited_image")}
    rows: dict[str, Any] = {"edit_prompt": ["first", "second"]}
    for name, role in (("original_image", "source"), ("edited_image", "target")):
        rows[name] = [{"bytes": png(GREY[role]), "path": None}] * 2
    datasets.Dataset.from_dict(rows, features=datasets.Features(features)).save_to_disk(here / "edits")


def texts(name: str, content: str) -> Callable[[Path], object]:
    return lambda here: (here / name).write_text(content)


LAYOUTS: dict[str, Callable[[Path], object]] = {
    "a text file": texts("prompts.txt", "first\n\ufeffsecond\n"),
    "pictures beside it": beside,
    "JSON lines with texts": texts(
        "sums.jsonl", '{"prompt": "first", "target": "1"}\n{"prompt": "second", "target": "2"}'
    ),
    "JSON lines with a picture": to_draw,
    "JSON lines for edits": edits,
    "questions about": questions,
    "a list of objects": texts(
        "train.json", '[{"caption": "first", "target": 1},\n{"caption": "second", "target": 2}]'
    ),
    "a conversation": conversations,
    "a table, separated by commas": texts("train.csv", 'text;target\nfirst;"one; or"\n\nsecond;two\n'),
    "a table, separated by tabs": texts("train.tsv", "question\tanswer\nfirst\t1\nsecond\t2\n"),
    "a folder of pictures": folder,
    "the same folder": folder,
    "a folder for LoRA": captions,
    "a Parquet file": parquet,
    "WebDataset": shards,
    "a Hugging Face dataset": dataset,
}
TABLE = [
    [cell.strip() for cell in line.split("|")] for line in re.findall(r"^\|(.*)\|$", PAGE.read_text(), re.MULTILINE)[2:]
]


@pytest.mark.parametrize("row", TABLE, ids=[row[0] for row in TABLE])
def test_layout(row: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    if "datasets" in row[0]:
        monkeypatch.setattr(pytest.importorskip("datasets").config, "HF_DATASETS_CACHE", tmp_path / "cache")
    [write] = [write for name, write in LAYOUTS.items() if row[0].startswith(name)]
    write(tmp_path)
    keys = yaml.safe_load(row[1].strip("`"))
    config = schema.parse(yaml.safe_dump({"policy": {"use": "p"}, "data": keys, "rewards": [{"use": "r"}]}), "c.yaml")
    prompts, _ = build.prompts(config)
    assert [prompt.text for prompt in prompts] == ["first", "second"]
    for prompt in prompts:
        target = prompt.target
        grey = target.getpixel((3, 3)) if isinstance(target, Image.Image) else None
        assert grey in (None, (GREY["target"],) * 3)
        assert (target is not None) == bool(row[3])
        assert [picture.getpixel((3, 3)) for picture in prompt.images] == [(GREY["source"],) * 3] * bool(row[4])
        assert not set(prompt.meta) - {"messages", "source", "file_name"}


def test_the_table_has_every_layout() -> None:
    assert len(TABLE) == len(LAYOUTS)


def test_objects_in_a_text_file(tmp_path: Path) -> None:
    """They are no prompts for a picture, whatever the file is called."""
    lines(tmp_path / "prompts.txt", {"prompt": "a sign", "id": 1}, {"prompt": "a cup", "id": 2})
    assert [prompt.text for prompt in read_prompts(tmp_path / "prompts.txt")] == ["a sign", "a cup"]


def test_the_last_turn_of_a_user_is_the_prompt(tmp_path: Path) -> None:
    turns = [{"role": role, "content": text} for role, text in (("user", "a"), ("assistant", "b"), ("user", "c"))]
    lines(tmp_path / "p.jsonl", {"prompt": turns})
    assert [prompt.text for prompt in read_prompts(tmp_path / "p.jsonl")] == ["c"]


def test_a_shard_is_read_where_it_lies(tmp_path: Path) -> None:
    shards(tmp_path)
    prompts = read_prompts(tmp_path / "shards")
    stored = (tmp_path / "shards/0.tar").read_bytes()
    check_pictures(prompts)
    content = prompts.row(0).prompt.images[0].read_bytes()  # type: ignore[attr-defined]
    assert content == png(GREY["target"])
    assert content in stored
    place = stored.index(content) + stored[stored.index(content) :].index(b"IDAT") + 4
    (tmp_path / "shards/0.tar").write_bytes(stored[:place] + bytes(8) + stored[place + 8 :])
    assert prompts.unopened(0).images[0].size == (8, 6)  # from its header
    for read in (check_pictures, list):
        with pytest.raises(DataError, match=r"0\.tar, sample some/folder/0001 cannot be read as a picture"):
            read(prompts)
    (tmp_path / "shards/0.tar").write_bytes(b"no archive")
    with pytest.raises(DataError, match=r"0\.tar cannot be read as a tar archive"):
        read_prompts(tmp_path / "shards")


def test_shards_are_read_in_the_order_of_their_names(tmp_path: Path) -> None:
    for number in (7, 3, 11, 1, 9):
        with tarfile.open(tmp_path / f"{number:02}.tar", "w") as shard:
            add(shard, "a.txt", str(number).encode())
    for place in (tmp_path, tmp_path / "*.tar"):
        assert [prompt.text for prompt in read_prompts(place)] == ["1", "3", "7", "9", "11"]


def test_texts_in_shards_are_utf_8(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        add(shard, "1.txt", "\ufeffa café\r\n".encode())
    assert [prompt.text for prompt in read_prompts(tmp_path / "a.tar")] == ["a café"]
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        add(shard, "1.txt", "a café".encode("latin-1"))
    with pytest.raises(DataError, match=r"a\.tar, 1\.txt: expected UTF-8 text: .*invalid|unexpected end"):
        read_prompts(tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("p.csv", "a cat\na dog\n", "has no column 'prompt'; it has: a cat"),
        ("p.csv", "prompt,target\na cat, black,x\n", r"row 1 \(line 2\) has 3 cells.*names 2 columns"),
        ("p.csv", "", "holds no prompt"),
        ("p.csv", "prompt,target, target\na cat,1,2\n", "two columns are called 'target'"),
        ("p.tsv", 'prompt\ttarget\n"CAT" on a sign\t1\n', "line 2: .*cell that contains quotes"),
        (
            "p.jsonl",
            '{"prompt": "a", "source": "a.tiff"}\n{"prompt": "b", "source": "x"}',
            "source is 'a.tiff'.*Convert",
        ),
        ("p.txt", '{"prompt": "a"}\n{"prompt": "b"', "line 2: not JSON"),
        ("folder", None, "is a folder without metadata.jsonl"),
        ("p.json", '[{"prompt": "a"}, 7]', "entry 2: expected an object"),
        (
            "p.jsonl",
            '{"prompt": [{"role": "assistant", "content": "a"}]}',
            "expected a text, or messages",
        ),
        ("p.jsonl", '{"prompt": "a", "image": "a.png", "source": "b.png"}', "has both image and source"),
    ],
)
def test_what_cannot_be_read(name: str, content: str | None, words: str, tmp_path: Path) -> None:
    (tmp_path / name).mkdir() if content is None else (tmp_path / name).write_text(content)
    with pytest.raises(DataError, match=words):
        read_prompts(tmp_path / name)


def test_a_picture_without_its_text(tmp_path: Path) -> None:
    captions(tmp_path)
    (tmp_path / "cats/10_cat1/a.caption").unlink()
    with pytest.raises(DataError, match=r"1 of 2 pictures in .*10_cat1/a\.txt"):
        read_prompts(tmp_path / "cats")


def test_a_cell_longer_than_the_csv_module_reads(tmp_path: Path) -> None:
    (tmp_path / "p.csv").write_text(f"prompt,target\n{'long, '.join('ab') * 2**15!r},1\n".replace("'", '"'))
    assert len(read_prompts(tmp_path / "p.csv")[0].text) == 2**18


def test_columns_do_not_touch_lines(tmp_path: Path) -> None:
    """Held-out lines may stand beside a table that needs them."""
    (tmp_path / "p.txt").write_text("a cat\n")
    assert read_prompts(tmp_path / "p.txt", columns={"prompt": "text"})[0].text == "a cat"


@pytest.mark.parametrize("content", [b"{" * 2, b"[" * 10**6, b'{"a":' * 10**6, b'{"prompt": "a", "prompt": "b"}'])
def test_objects_in_shards_are_sound(tmp_path: Path, content: bytes) -> None:
    with tarfile.open(tmp_path / "a.tar", "w") as shard:
        add(shard, "1.json", content)
    with pytest.raises(DataError, match=r"a\.tar, 1\.json: expected a JSON object"):
        read_prompts(tmp_path / "a.tar")


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("p.csv", "prompt,target,,\na,1,,\n", [("a", "1", 1)]),
        ("p.csv", "prompt, target\na, 1\n,\n\nb, 2\n", [("a", "1", 1), ("b", "2", 4)]),
        ("p.tsv", 'prompt\ttarget\n"""CAT"" on a sign"\t1\n', [('"CAT" on a sign', "1", 1)]),
        ("p.txt", "target,prompt\n1,a\n2,b\n", [("a", "1", 1), ("b", "2", 2)]),
        ("p.csv", 'prompt|target\n"a|b, c"|1\n2;3|5\n', [("a|b, c", "1", 1), ("2;3", "5", 2)]),
        ("p.txt", "prompt|target\na|1\n", [("a", "1", 1)]),
        ("p.txt", '[\n{"prompt": "a", "target": 1}]', [("a", 1, 1)]),
        ("p.txt", "{a|b} car\nprompt, engineering\n", [("{a|b} car", None, 1), ("prompt, engineering", None, 2)]),
    ],
)
def test_what_is_read(name: str, content: str, expected: list[tuple[str, Any, int]], tmp_path: Path) -> None:
    (tmp_path / name).write_text(content)
    prompts = read_prompts(tmp_path / name)
    assert [(p.text, p.target, prompts.row(i).number) for i, p in enumerate(prompts)] == expected


def test_pictures_of_edits_are_never_lost(tmp_path: Path) -> None:
    pictures(tmp_path, a=1, b=2)
    lines(tmp_path / "p.jsonl", {"prompt": "e", "source": ["a.png", "b.png"]}, {"prompt": "f", "source": "a.png"})
    assert [len(prompt.images) for prompt in read_prompts(tmp_path / "p.jsonl")] == [2, 1]


def test_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "p.txt").write_text("a cat\n")
    config = schema.parse(
        "policy: {use: p, text: '~/m'}\ndata: {prompts: '~/p.txt'}\nrewards: [{use: r}]", "c", ["run.dir=~/x"]
    )
    assert (config.run.dir, config.policy.params["text"]) == (f"{tmp_path}/x", "~/m")  # a component knows its paths
    assert len(build.prompts(config)[0]) == len(read_prompts("~/p.txt")) == 1
