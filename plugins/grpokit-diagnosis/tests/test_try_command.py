"""`grpokit try` as users call it: what it prints, its page and its picture, and what it says to bad input."""

from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from PIL import Image

from command_line import Call

REWARDS = "trial_rewards"
OURS = b"grpokit try"


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Each call works in a folder of its own."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def picture(name: str, colour: str = "white", size: tuple[int, int] = (64, 64)) -> str:
    Image.new("RGB", size, colour).save(name)
    return name


class Page(HTMLParser):
    """The elements of a page with their attributes, and its text."""

    def __init__(self, file: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.text = ""
        self.feed(Path(file).read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        self.text += data

    def with_class(self, name: str) -> list[dict[str, str | None]]:
        return [attributes for _, attributes in self.elements if name in (attributes.get("class") or "").split()]


def test_a_text(call: Call) -> None:
    done = call("try", "contains", "the answer is 12", "--target", "12")
    assert done.code == 0, done.err
    assert done.out.splitlines() == [
        'contains gives "the answer is 12" 1.0000',
        "It needs the target: there is no score without.",
        "Worth most is “12”: +1.0000. The empty text scores 0.",
        "page: try-contains.html",
    ]
    page = Page("try-contains.html")
    (word,) = page.with_class("raises")
    assert word["title"] == "+1.0000"
    assert word["style"] == "--share: 0.500"
    assert not page.with_class("lowers")
    assert "the answer is " in page.text


def test_a_picture(call: Call) -> None:
    half = Image.new("RGB", (64, 64))
    half.paste((255, 255, 255), (0, 0, 16, 16))
    half.save("half.png")
    done = call("try", f"{REWARDS}:quarter", "half.png", "--json", "--squares", 4)
    assert done.code == 0, done.err
    (sample,) = json.loads(done.out)["samples"]
    assert sample["kind"] == "image"
    assert sample["score"] == pytest.approx(0.25)
    worth = {(part["left"], part["top"], part["right"], part["bottom"]): part["worth"] for part in sample["parts"]}
    assert worth[0, 0, 16, 16] == pytest.approx(0.25)  # all of the light
    assert worth[0, 0, 8, 8] == pytest.approx(0.0625)
    assert worth[8, 8, 24, 24] == pytest.approx(0.0625)
    assert sum(map(bool, worth.values())) == 1 + 4
    assert sample["empty"] == 0
    assert not list(Path().glob("*.html"))  # JSON alone


def test_the_page_of_a_picture(call: Call) -> None:
    picture("it.png")
    picture("target.png", "gray")
    assert call("try", "mse", "it.png", "--target", "target.png", "--out", "deep/page.html").code == 0
    page = Page("deep/page.html")
    images = [attributes for tag, attributes in page.elements if tag == "img"]
    assert [each["alt"] for each in images] == ["target", "the picture", "the map over the picture"]
    assert all((each["src"] or "").startswith("data:image/jpeg;base64,") for each in images)
    assert not any(tag in ("script", "iframe", "object") for tag, _ in page.elements)
    addresses = [each.get("href") or each.get("src") or "" for _, each in page.elements]
    assert not [address for address in addresses if address and not address.startswith(("data:", "#"))]
    assert "All 113 squares" not in page.text


def test_several_are_ranked(call: Call) -> None:
    for name, colour in (("dark.png", "black"), ("light.png", "white"), ("gray.png", "gray")):
        picture(name, colour)
    done = call("try", "brightness", "dark.png", "light.png", "gray.png", "--maps", 2)
    assert done.code == 0, done.err
    assert re.findall(r"^(\w+\.png) +([\d.]+)$", done.out, re.MULTILINE) == [
        ("light.png", "1.0000"),
        ("gray.png", "0.5020"),
        ("dark.png", "0"),
    ]
    assert "1 sample not explained; --maps 3 explains all" in done.out
    page = Page("try-brightness.html")
    sections = [each["id"] for tag, each in page.elements if tag == "section" and "id" in each]
    assert sections == ["sample-1", "sample-2"]


def test_a_folder_and_records(call: Call) -> None:
    Path("many").mkdir()
    for number in (2, 10, 1):
        picture(f"many/{number}.png", "white" if number == 10 else "black")
    done = call("try", "brightness", "many", "--json")
    ranking = [Path(sample["where"]).name for sample in json.loads(done.out)["samples"]]
    assert ranking == ["10.png", "1.png", "2.png"]
    lines = [{"prompt": "7 + 5", "output": "it is 12", "target": "12"}, {"prompt": "1", "output": "2", "target": "3"}]
    Path("records.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    samples = json.loads(call("try", "contains", "records.jsonl", "--json").out)["samples"]
    assert [sample["score"] for sample in samples] == [1.0, 0.0]
    assert call("try", "contains", "records.jsonl").code == 0
    assert "7 + 5" in Page("try-contains.html").text  # each sample with its prompt


def test_a_file_of_text(call: Call) -> None:
    Path("answer.txt").write_text("It is 12.\n")
    done = call("try", "numeric-answer", "answer.txt", "--target", "12")
    assert done.out.startswith("numeric-answer gives answer.txt 1.0000\n")


def test_what_the_reward_needs(call: Call) -> None:
    picture("it.png")
    picture("same.png")
    done = call("try", "mse", "it.png", "--target", "same.png", "--prompt", "a cat", "--source", "same.png")
    assert "It needs the target: there is no score without. It makes no use of the prompt or the source." in done.out
    assert "It needs nothing but the sample." in call("try", "brightness", "it.png").out


def test_parameters(call: Call) -> None:
    picture("it.png")
    done = call("try", "contains", "It Is", "ignore_case=true", "--target", "it is", "--json")
    facts = json.loads(done.out)
    assert facts["parameters"] == {"ignore_case": True}
    assert facts["samples"][0]["score"] == 1
    assert call("try", "contains", "It Is", "contains.ignore_case=true", "--target", "it is").code == 0
    wrong = call("try", "contains", "It Is", "ignore_caze=true", "--target", "it is")
    assert wrong.code == 2
    assert "ignore_case" in wrong.err


def test_a_reward_that_compares_gets_whole_groups(call: Call) -> None:
    picture("a.png", "black")
    picture("b.png", "black")
    picture("c.png", "white")
    alone = call("try", "pixel-diversity", "a.png")
    assert alone.code == 2
    assert "compares the samples of a group, so a.png has no score of its own" in alone.err
    done = call("try", "pixel-diversity", "a.png", "b.png", "c.png", "--json", "--squares", 1)
    scores = {sample["where"]: sample["score"] for sample in json.loads(done.out)["samples"]}
    assert scores == {"a.png": 0, "b.png": 0, "c.png": 1}
    assert "It compares the samples of a group" in call("try", "pixel-diversity", "a.png", "b.png").out


def test_data_is_text_on_the_page(call: Call) -> None:
    evil = '</title><script>alert("x")</script><img src=x onerror=alert(1)> & \x00 \ud800 12'
    Path("<img src=x onerror=alert(2)>.txt").write_text("it is 12", encoding="utf-8")
    words = [evil, "<img src=x onerror=alert(2)>.txt"]
    done = call("try", "contains", *words, "--target", "12", "--prompt", "<svg onload=alert(3)>", "--out", "page.html")
    assert done.code == 0, done.err
    page = Page("page.html")
    tags = [tag for tag, _ in page.elements]
    assert not {"script", "img", "svg"} & {*tags}
    assert not [name for _, attributes in page.elements for name in attributes if name.startswith("on")]
    assert "<svg onload=alert(3)>" in page.text


def test_the_heat_map_as_a_picture(call: Call) -> None:
    picture("it.png", size=(300, 200))
    done = call("try", "brightness", "it.png", "--out", "map.png")
    assert done.out.endswith("heat map: map.png\n")
    with Image.open("map.png") as drawn:
        assert drawn.size[0] == 300 + 32
    assert call("try", "brightness", "it.png", "--out", "map.png").code == 0  # its own is replaced
    before = Path("it.png").read_bytes()
    over = call("try", "brightness", "it.png", "--out", "it.png")
    assert over.code == 2
    assert "it.png exists already and is no heat map" in over.err
    assert Path("it.png").read_bytes() == before


@pytest.mark.parametrize("name", ["page.html", "try-brightness.html"])
def test_another_page_is_kept(call: Call, name: str) -> None:
    picture("it.png")
    Path(name).write_text("<title>mine</title>")
    done = call("try", "brightness", "it.png", *(["--out", name] if name == "page.html" else []))
    assert done.code == 2
    assert "exists already" in done.err
    assert Path(name).read_text() == "<title>mine</title>"


def test_a_reward_that_prints_leaves_json_alone(call: Call) -> None:
    done = call("try", f"{REWARDS}:talks", "a cat", "--json")
    assert json.loads(done.out)["samples"][0]["score"] == 1
    assert "loading model ..." in done.err


def damaged(name: str) -> None:
    Path(name).write_bytes(b"\x89PNG\r\n\x1a\n nothing more")


def animated(name: str) -> None:
    frames = [Image.new("RGB", (32, 32), colour) for colour in ("white", "black", "red")]
    frames[0].save(name, save_all=True, append_images=frames[1:])


def test_of_an_animation_the_first_picture_counts(call: Call) -> None:
    animated("moving.webp")
    done = call("try", "brightness", "moving.webp")
    assert done.code == 0
    assert "warning: moving.webp has 3 pictures; the first was scored" in done.err
    assert "moving.webp 1.0000" in done.out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["brightness"], "Missing argument"),
        (["contains", "ignore_case=true"], "Name what 'contains' is tried on"),
        (["brightness", "none.png"], "There is no file or folder none.png"),
        (["contains", "none.jsonl", "--target", "1"], "The text none.jsonl does not exist"),
        (["brigthness", "it.png"], "did you mean 'brightness'?"),
        (["nowhere.module:reward", "it.png"], "nowhere"),
        (
            ["mse", "it.png"],
            "'mse' gives it.png no score with this prompt: there is no target. Give --target FILE|TEXT.",
        ),
        (
            ["mse", "it.png", "--target", "a cat"],
            "'mse' cannot score it.png: its target is 'a cat'; expected a picture",
        ),
        (["mse", "it.png", "--target", "none.png"], "--target: there is no file none.png"),
        (["structure", "it.png", "--source", "none.png"], "--source: there is no file none.png"),
        (["contains", "a cat"], 'gives "a cat" no score with this prompt: there is no target'),
        (["contains", "it.png", "--target", "x"], "scores texts, but some samples (such as it.png) are pictures"),
        (["brightness", "a cat"], "scores pictures, but some samples"),
        (["brightness", "."], "it.gif is a picture of another kind"),
        (["brightness", "damaged.png"], "damaged.png cannot be read as a picture"),
        (["brightness", "it.gif"], "it.gif is neither a picture"),
        (["brightness", "it.png", "--max-pixels", "100"], "the limit is 100"),
        (["brightness", "it.png", "--out", "page.pdf"], "ends in neither .html nor .png"),
        (["brightness", "it.png", "--out", "."], "is a folder"),
        (["contains", "a cat", "--target", "cat", "--out", "map.png"], 'map.png is a picture, and "a cat" is a text'),
        (["contains", "records.jsonl", "--prompt", "x"], "have their own prompts"),
        ([f"{REWARDS}:raises", "a cat"], "raised ZeroDivisionError: always"),
        (["contains", *map(str, range(101)), "--target", "1"], "101 samples; `grpokit try` shows at most 100"),
    ],
)
def test_bad_input(call: Call, words: list[str], message: str) -> None:
    if words != ["brightness", "."]:
        picture("it.png")
        damaged("damaged.png")
        Path("records.jsonl").write_text('{"prompt": "a", "output": "b"}\n')
    Image.new("RGB", (8, 8)).save("it.gif")
    done = call("try", *words)
    assert done.code in (1, 2)
    assert message in " ".join(done.err.split())
    assert "Traceback" not in done.err
    assert not list(Path().glob("*.html"))
