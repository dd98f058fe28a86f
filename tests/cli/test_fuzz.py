"""Hundreds of wrong configs, overrides and data files: each is read, or ends in one message of grpokit's own.

Any other exception fails a test, for it would be a traceback to a user. The draws are the same every time;
`GRPOKIT_FUZZ=10 pytest tests/cli/test_fuzz.py --hypothesis-seed=1` draws ten times as many others.
"""

from __future__ import annotations

import contextlib
import copy
import io
import json
import os
import sys
import tempfile
import zlib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from PIL import Image

from grpokit import GrpokitError, Prompt, cli, registry
from grpokit.config import yaml_source as sources
from grpokit.config.schema import parse, to_dict
from grpokit.data import read_prompts
from grpokit.runs import build, build_rewards

CASES = {"structure": 150, "text": 150, "overrides": 80, "prompts": 80, "jsonl": 80, "pictures": 40}
TIMES = int(os.environ.get("GRPOKIT_FUZZ", "1"))

GOOD: dict[str, Any] = {
    "seed": 1,
    "policy": {"use": "tiny_policies:TinyTokens", "vocab": 6},
    "data": {"prompts": "prompts.txt"},
    "rewards": [
        {"use": "length", "maximum": 3, "weight": 0.5},
        {"use": "numeric-answer", "pattern": "([0-9])", "tolerance": 0.1, "name": "right"},
    ],
    "trainer": {"steps": 3, "group_size": 2, "kl": "k3", "advantage": {"use": "group", "clip": 5}, "objective": "dapo"},
    "run": {"dir": "out"},
    "trackers": {"use": ["tensorboard"]},
}
NASTY: list[Any] = [
    None, True, False, 0, -1, 1, 2, 2.5, 1e3, 1e400, -1e400, float("nan"), 1e-320, 10**18, 10**30, -(10**30), 10**5000,
    "", " ", "x", "x y", "1_000", "5e-6", "0o17", "1:30", "010", "2026-11-21", "no", "=", "<<", "~", "*", "&a",
    "{", "[", "!", "%",
    "\0", "a\0b", "\ud800", "\u2028", "字", "🙂", "é" * 300, "x" * 5000, ".", "..", "/", "../..", "prompts.txt",
    "prompts.txt/x", ":", "a:", ":b", "a:b", "a:b:c", "..:x", ".a:b", "math:pi", "math:floor", "json:dumps",
    "builtins:dict", "tiny_policies:", "tiny_policies:nope", "tiny_policies:digit_sum", "tiny_policies:TinyGaussian",
    "length", "toy-lm", "grpokit:length", "grpokit:", "no:length", "(", "(?P<", "[a", "a{99999999999}", "(" * 200,
    "\\", "*", [], {}, [[]], [None], [1, "a"], {"": 1}, {"use": None}, {"use": "length"}, {"use": "group", "scale": 3},
    {1: 2}, {"a": {"b": {"c": []}}}, {"x" * 200: 1},
]  # fmt: skip
KEYS = [
    "",
    "use",
    "steps",
    "stepz",
    "name",
    "weight",
    "prompts",
    "split",
    "dataset",
    "columns",
    "fraction",
    "a.b",
    "é",
]


def fuzz(name: str) -> Any:
    return settings(
        max_examples=CASES[name] * TIMES,
        derandomize=TIMES == 1,
        deadline=None,
        database=None,
        suppress_health_check=list(HealthCheck),
    )


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("fuzz")
    (folder / "prompts.txt").write_text("1\n2\n3\n4\n")
    (folder / "c.yaml").write_text(yaml.safe_dump(GOOD))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        patch.setattr(sys, "path", list(sys.path))
        yield folder
    assert sorted(p.name for p in folder.iterdir()) == ["c.yaml", "prompts.txt"]  # nothing was written


def check_message(error: GrpokitError) -> None:
    said = str(error)
    assert said.strip()
    assert len(said) < 5000
    assert "Traceback" not in said
    assert error.exit_code == 2


def build_all(text: str, overrides: Sequence[str] = ()) -> None:
    """Read a config and build what it names, without training: it works, or a GrpokitError says why not."""
    try:
        config = parse(text, "c.yaml", overrides)
        again = parse(sources.to_yaml(to_dict(config)), "config.yaml")  # as a run folder keeps it
        assert repr(again.model_dump()) == repr(config.model_dump())
        if not config.data.dataset:  # which may ask the network
            for prompts in build.prompts(config):
                for prompt in prompts[:2] if prompts else ():
                    assert isinstance(prompt, Prompt)
        build.check_components(config)
        build_rewards.rewards(config)
        build.policy(config)
    except GrpokitError as error:
        check_message(error)


# --- configs -------------------------------------------------------------------------------------------------------

PRESETS = ["toy-lm", "toy-flow"]


def preset(name: str) -> dict[str, Any]:
    _, spec = registry.find("preset", name)
    package, _, inside = spec.factory.partition(":")
    import importlib.resources

    return yaml.safe_load(importlib.resources.files(package).joinpath(inside).read_text())  # type: ignore[no-any-return]


def groups(value: Any) -> list[Any]:
    """Every mapping and list inside."""
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [value, *(g for v in inner for g in groups(v))] if isinstance(value, (dict, list)) else []


@st.composite
def mutated(draw: st.DrawFn) -> dict[str, Any]:
    """A good config with one to three of its entries dropped, renamed, replaced, added or moved."""
    source = draw(st.sampled_from([None, None, None, *PRESETS]))
    config = copy.deepcopy(GOOD) if source is None else preset(source)
    for _ in range(draw(st.integers(1, 3))):
        group = draw(st.sampled_from(groups(config)))
        value = copy.deepcopy(draw(st.sampled_from(NASTY)))
        places: list[Any] = list(group) if isinstance(group, dict) else list(range(len(group)))
        what = draw(st.sampled_from(["drop", "rename", "replace", "replace", "replace", "add", "whole"]))
        if what == "add" or not places:
            if isinstance(group, dict):
                group[draw(st.sampled_from(KEYS))] = value
            else:
                group.append(value)
            continue
        place = draw(st.sampled_from(places))
        if what == "replace":
            group[place] = value
        elif what == "whole":
            group[place] = copy.deepcopy(draw(st.sampled_from(groups(config))))
        elif what == "drop" or isinstance(group, list):
            del group[place]
        else:
            group[draw(st.sampled_from(KEYS))] = group.pop(place)
    return config


def dump(config: Any) -> str:
    sys.set_int_max_str_digits(0)  # a file may hold a number that Python would not write
    try:
        return yaml.safe_dump(config, sort_keys=False, allow_unicode=True)
    finally:
        sys.set_int_max_str_digits(4300)


@fuzz("structure")
@given(mutated())
def test_configs_changed_in_their_structure(config: dict[str, Any]) -> None:
    build_all(dump(config))


TEXT = dump(GOOD)
CHARACTERS = st.sampled_from(
    [*" \n\t:-,[]{}&*!|>'\"%@`#?=<~.0123456789_eE+xo\0\u2028", "字", "- ", ": ", "<<: ", "!!int "]
)
MANY = st.text(st.characters(codec="utf-8"), max_size=40) | st.lists(CHARACTERS, max_size=40).map("".join)


@st.composite
def scribbled(draw: st.DrawFn) -> str:
    """The text of a good config with pieces taken out, put in or doubled; or any text."""
    if draw(st.integers(0, 4)) == 0:
        return draw(MANY)
    text = TEXT
    for _ in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(text)))
        end = start + draw(st.integers(0, 12))
        piece = draw(st.sampled_from(["", text[start:end] * 2]) | st.lists(CHARACTERS, max_size=4).map("".join))
        text = text[:start] + piece + text[end:]
    return text


@pytest.mark.slow
@fuzz("text")
@given(scribbled())
def test_configs_changed_in_their_text(text: str) -> None:
    build_all(text)


PATHS = [
    "seed", "policy", "policy.use", "policy.vocab", "policy.length", "data", "data.prompts", "data.dataset",
    "data.targets", "eval.prompts", "data.use", "data.split", "rewards", "rewards.0", "rewards.0.use",
    "rewards.0.maximum", "rewards.1", "rewards.1.pattern", "rewards.2", "rewards.-1", "rewards.x",
    "rewards.0.weight.x", "rewards.0.on_error", "trainer", "trainer.steps", "trainer.advantage",
    "trainer.advantage.scale", "trainer.objective", "trainer.kl", "trainer.clip_range", "run", "run.dir",
    "trackers.use", "run.threads", "run.best", "", ".", "a..b", "x", "x.y.z", "policy.é", "trainer.steps.x",
]  # fmt: skip
VALUES = st.sampled_from(NASTY).map(
    lambda v: json.dumps(v) if not isinstance(v, int) or abs(v) < 10**40 else "9" * 5000
)


@pytest.mark.slow
@fuzz("overrides")
@given(st.lists(st.tuples(st.sampled_from(PATHS), st.sampled_from(["=", "=", "=", ""]), VALUES | MANY), max_size=3))
def test_overrides_on_the_command_line(parts: list[tuple[str, str, str]]) -> None:
    """`evaluate` reads and builds all, and stops before it draws: the config names no held-out prompts."""
    words = ["".join(part).replace("\0", "") for part in parts]  # no process is given a NUL byte
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        patch.setattr(sys, "argv", ["grpokit", "evaluate", "c.yaml", "--", *words])
        patch.setattr(sys, "path", list(sys.path))
        with pytest.raises(SystemExit) as ended:
            cli.main()
    assert ended.value.code in (0, 2)
    assert "Traceback" not in err.getvalue()
    assert (ended.value.code == 2) == err.getvalue().startswith("error: ")


# --- data ----------------------------------------------------------------------------------------------------------


def read_all(read: Any, *arguments: Any, **options: Any) -> None:
    try:
        prompts = read(*arguments, **options)
        assert len(prompts) > 0
    except GrpokitError as error:
        check_message(error)
        return
    for i in range(len(prompts)):
        try:
            assert isinstance(prompts[i], Prompt)
            prompts[i].text.encode()
        except GrpokitError as error:
            check_message(error)


@fuzz("prompts")
@given(
    st.binary(max_size=60) | MANY.map(str.encode) | st.lists(MANY, max_size=5).map(lambda x: "\r\n".join(x).encode())
)
def test_prompts_files(content: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "p.txt").write_bytes(content)
        read_all(read_prompts, Path(folder) / "p.txt")


JSON = st.recursive(
    st.sampled_from([v for v in NASTY if isinstance(v, (str, bool, float, int, type(None))) and v != 10**5000])
    | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=5,
)
NAMES = st.sampled_from(["prompt", "target", "image", "promt", "x"])


@st.composite
def line(draw: st.DrawFn) -> bytes:
    row: Any = draw(st.dictionaries(NAMES, JSON, max_size=3) | JSON)
    if isinstance(row, dict) and draw(st.booleans()):
        row["prompt"] = draw(st.text(min_size=1, max_size=8))
        row["target"] = draw(st.sampled_from(["a.png", "no.png", "p.jsonl", ".png", "a.png/b.png", "\0.png", "t", 5]))
    text = json.dumps(row, ensure_ascii=draw(st.booleans())).encode(errors="replace")
    if draw(st.integers(0, 3)) == 0:
        at = draw(st.integers(0, len(text)))
        text = (
            text[:at] + draw(st.sampled_from([b"", b"\xff", b"\0", b"{", b"9" * 5000, b"[" * 20_000])) + text[at + 1 :]
        )
    return text


@fuzz("jsonl")
@given(st.lists(line(), max_size=3))
def test_jsonl_files(lines: list[bytes]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        Image.new("L", (2, 2)).save(Path(folder) / "a.png")
        (Path(folder) / "p.jsonl").write_bytes(b"\n".join(lines))
        read_all(read_prompts, Path(folder) / "p.jsonl")


def picture(kind: str, mode: str) -> bytes:
    file = io.BytesIO()
    Image.effect_noise((13, 9), 90).convert(mode).save(file, kind)
    return file.getvalue()


WHOLE = [picture("PNG", m) for m in ("L", "RGB", "RGBA", "P", "1")]
WHOLE += [picture(k, "RGB") for k in ("JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "ICO", "TGA", "PCX", "SGI", "DDS")]


def mended(content: bytes) -> bytes:
    """A PNG with right checksums, so that what was changed is read at all."""
    if not content.startswith(b"\x89PNG"):
        return content
    made, at = content[:8], 8
    while at + 12 <= len(content):
        end = at + 8 + int.from_bytes(content[at : at + 4], "big")
        made += content[at:end] + zlib.crc32(content[at + 4 : end]).to_bytes(4, "big")
        at = end + 4
    return made


@st.composite
def damaged(draw: st.DrawFn) -> bytes:
    content = draw(st.sampled_from(WHOLE) | st.binary(max_size=30))
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, min(len(content), 60)) | st.integers(0, len(content)))
        what = draw(st.sampled_from(["cut", "change", "drop", "repeat"]))
        if what == "cut":
            content = content[:at]
        elif what == "change":
            content = content[:at] + draw(st.binary(min_size=1, max_size=4)) + content[at + 1 :]
        else:
            content = content[:at] + (content[at : at + 9] * 2 if what == "repeat" else b"") + content[at + 9 :]
    return mended(content) if draw(st.booleans()) else content


FILES = st.sampled_from(
    ["1.png", "2.png", "01.jpg", "0.png", "3.webp", "x.png", "1.txt", "2.JPEG", "9999999999999.png"]
)


@pytest.mark.filterwarnings("ignore:.* no prompt:UserWarning")
@fuzz("pictures")
@given(st.dictionaries(FILES, damaged(), max_size=4), st.sampled_from(["1\n", "1\n2\n", "\n1\n"]))
def test_folders_of_targets(files: dict[str, bytes], text: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        targets = Path(folder) / "t"
        targets.mkdir()
        for name, content in files.items():
            (targets / name).write_bytes(content)
        (Path(folder) / "p.txt").write_text(text)
        read_all(read_prompts, Path(folder) / "p.txt", targets=targets)
