"""Worlds in capsules: the answers of worlds in the run's own process, whatever a world does to its process."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import capsule_worlds
import psutil
import pytest
from PIL import Image

from grpokit import PluginError, Prompt, RunError, UsageError, create
from grpokit_capsule import world as world_module
from grpokit_capsule.copy import LostError
from grpokit_capsule.world import CapsuleWorld
from left_running import gone
from small_runs import rows, train, write_prompts
from whole_runs import assert_same

WORLDS = str(Path(__file__).parent / "scorers")
HERE = {"python": sys.executable, "path": WORLDS}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("GRPOKIT_CAPSULES", str(tmp_path_factory.getbasetemp() / "capsules"))
    yield
    for copy in world_module._processes.values():
        copy.end()
    world_module._processes.clear()


def world(use: str = "AsTold", **options: Any) -> CapsuleWorld:
    made: CapsuleWorld = create("world", "capsule", {"world": f"capsule_worlds:{use}", **HERE, **options})
    return made


def processes() -> set[int]:
    return {child.pid for child in psutil.Process().children(recursive=True)}


def test_it_answers_as_the_world_does() -> None:
    """All that it returns arrives as it was, and the world sees the prompt."""
    here, there = capsule_worlds.AsTold(), world()
    prompt = Prompt("go", images=[Image.new("RGB", (3, 2))], meta={"level": 3})
    assert there.start(prompt, 7) == here.start(prompt, 7) == {"role": "user", "content": "go 7"}
    assert there.reply("ü") == here.reply("ü")
    assert there.facts() == here.facts() == {"return": 1.5, "open": 1, "pair": (1, None)}
    assert there.tools == [*here.tools]
    there.close()
    here.close()


def test_all_episodes_share_a_process_and_none_their_state() -> None:
    before = processes()
    games = [world("Game", high=99) for _ in range(3)]
    for seed, game in enumerate(games):
        game.start(Prompt("p"), seed)
    assert [game.reply("0") for game in games] == ["higher"] * 3
    assert games[1].reply("0") == "higher"
    assert [game.facts()["left"] for game in games] == [3, 2, 3]
    assert len(processes() - before) == 2  # with the one that watches it
    assert world("Game", high=9)._copy is not games[0]._copy


def test_what_is_optional_may_be_missing() -> None:
    there = world("echo")
    assert there.start(Prompt("p"), 0) is None
    assert there.reply("a") == "a"
    assert there.facts() == {}
    assert there.tools == []
    there.close()


@pytest.mark.parametrize(
    ("word", "kind", "text"),
    [
        ("raise", r"KeyError .*capsule_worlds.py, line \d+\)", "'no such\\\\n place.'"),
        ("exit", r"SystemExit .*capsule_worlds.py, line \d+\)", "no more of this"),
        ("object", "TypeError", r"it returned builtins\.object; expected text"),
    ],
)
def test_an_exception_of_a_world_is_raised_here(word: str, kind: str, text: str) -> None:
    there = world()
    there.start(Prompt("p"), 0)
    with pytest.raises(Exception, match=f"^{text}") as caught:
        there.reply(word)
    assert type(caught.value).__name__.startswith(kind.partition(" ")[0])
    assert there.reply("on") == [{"role": "tool", "content": "on"}]


@pytest.mark.parametrize(
    ("word", "words"), [("crash", "ended by SIGSEGV"), ("hang", r"no answer within 1 s \(timeout")]
)
def test_a_lost_process_costs_the_worlds_that_were_open(word: str, words: str) -> None:
    one, other, ended = (world(timeout=1.0) for _ in range(3))
    for each in (one, other, ended):
        each.start(Prompt("p"), 0)
    assert ended.reply("end") is None
    with pytest.raises(LostError, match=words):
        one.reply(word)
    for lost in (one, other):
        with pytest.raises(LostError, match="was lost with the process"):
            lost.reply("on")
        assert lost.facts() == {}
        lost.close()
    assert ended.facts()["open"] == 3
    fourth = world(timeout=1.0)
    fourth.start(Prompt("p"), 0)
    with pytest.raises(LostError, match="was lost with the process"):
        one.reply("on")
    assert fourth.facts()["open"] == 1


def test_an_answer_that_comes_after_an_interrupt_is_not_the_next_one() -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs ignore it
    there = world()
    there.start(Prompt("p"), 0)
    interrupt = threading.Timer(0.3, os.kill, [os.getpid(), signal.SIGINT])
    interrupt.start()
    with pytest.raises(KeyboardInterrupt):
        there.reply("hang")
    interrupt.join()
    there.close()
    assert world().start(Prompt("p"), 1)["content"] == "p 1"


def test_a_world_that_fails_to_start_is_closed() -> None:
    there = world()
    with pytest.raises(Exception, match="no such start"):
        there.start(Prompt("raise"), 0)
    there.close()
    other = world()
    other.start(Prompt("p"), 0)
    assert other.facts()["open"] == 1


def test_a_crash_at_the_start_is_a_loss() -> None:
    there = world()
    with pytest.raises(LostError, match="ended by SIGSEGV"):
        there.start(Prompt("crash"), 0)
    there.close()
    assert world().start(Prompt("p"), 1)["content"] == "p 1"


KILLED = """
import os, sys, threading, time
from grpokit import Prompt
from grpokit_capsule.world import CapsuleWorld
import psutil
world = CapsuleWorld("capsule_worlds:AsTold", python=sys.executable, path=sys.argv[1])
world.start(Prompt("p"), 0)
world.reply("orphan")
threading.Thread(target=world.reply, args=["hang"], daemon=True).start()
time.sleep(0.2)
print(*(child.pid for child in psutil.Process().children(recursive=True)), flush=True)
if sys.argv[2] == "killed":
    os.kill(os.getpid(), 9)
"""


@pytest.mark.parametrize("end", ["killed", "by itself"])
def test_nothing_is_left_running(end: str) -> None:
    command = [sys.executable, "-c", KILLED, WORLDS, end]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=120)
    assert done.returncode == (-signal.SIGKILL if end == "killed" else 0)
    left = {*map(int, done.stdout.split())}
    assert len(left) == 3
    assert gone(left)


def test_a_world_that_was_mended_can_be_built(tmp_path: Path) -> None:
    file = tmp_path / "mended_world.py"
    file.write_text("raise ValueError('not yet')")
    options = {"world": "mended_world:Echo", "python": sys.executable, "path": str(tmp_path)}
    for _ in range(2):
        with pytest.raises(PluginError, match="ValueError: not yet"):
            create("world", "capsule", options)
    file.write_text(Path(WORLDS, "capsule_worlds.py").read_text())
    assert create("world", "capsule", options).start(Prompt("p"), 0) is None


@pytest.mark.parametrize(
    ("use", "options", "message"),
    [
        ("capsule_worlds:Mute", {}, "TypeError: it has no method reply"),
        ("capsule_worlds:Game", {"hihg": 3}, "TypeError: .*'hihg'"),
        ("capsule_world:Game", {}, "Name the folder that holds capsule_world as `path`"),
        ("capsule_worlds", {}, "expected a class such as 'my_world:World'"),
        ("capsule_worlds:Game", {"path": "/no/such/folder"}, "expected a folder"),
    ],
)
def test_a_mistake_is_one_message(use: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises((PluginError, UsageError), match=message):
        create("world", "capsule", {"world": use, **HERE, **options})


POLICY = {"use": "hf-lm", "model": "grpokit_lm:models/guess", "dtype": "float32", "max_new_tokens": 48, "min_p": 0.1}
IN_PROCESS = {"use": "capsule_worlds:Game"}
IN_CAPSULE = {"use": "capsule", "world": "capsule_worlds:Game", **HERE}
LIBRARIES = {
    "openenv": {"environment": "openenv_game:Game", "show": "hint", "requires": ["openenv==0.10.0"]},
    "verifiers": {"environment": {"taskset": {"id": "verifiers_game"}}, "requires": ["verifiers==0.4.0"]},
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    write_prompts(["Game 12.", "Game 3."])
    return tmp_path


def run(name: str, world: dict[str, Any], *, steps: int = 2, resume: bool = False, **options: Any) -> None:
    train(
        name,
        resume=resume,
        policy={**POLICY, "world": world, "lora": {"r": 4}, **options},
        rewards=[{"use": "episode-return"}],
        eval__every=1,
        trainer__steps=steps,
    )


def test_a_run_has_the_bits_of_one_in_its_own_process(folder: Path) -> None:
    run("here", IN_PROCESS)
    run("there", IN_CAPSULE)
    assert_same(folder / "here", folder / "there")
    assert 0 < rows("there/metrics.jsonl")[0]["reward"] < 1


@pytest.mark.slow
def test_errors_of_a_world_become_the_same_messages(folder: Path) -> None:
    run("here", {**IN_PROCESS, "forgives": False}, world_errors="message", temperature=3.0)
    run("there", {**IN_CAPSULE, "forgives": False}, world_errors="message", temperature=3.0)
    assert_same(folder / "here", folder / "there")
    with pytest.raises(RunError, match=r"failed in turn \d, .*ValueError .*capsule_worlds.py, line \d+"):
        run("stopped", {**IN_CAPSULE, "forgives": False}, temperature=3.0)


@pytest.mark.slow
def test_a_crash_costs_a_run_the_episodes_that_were_open(folder: Path) -> None:
    world = {**IN_CAPSULE, "deadly": "9"}
    run("on", world, world_errors="end")
    first, *_ = rows("on/metrics.jsonl")
    assert 0 < first["unscored_rows"] < 8
    assert first["reward"] > 0
    with pytest.raises(RunError, match=r"failed in turn \d, .*'9': LostError: lost its capsule's process"):
        run("stopped", world)


@pytest.mark.slow
@pytest.mark.parametrize("use", ["capsule", *LIBRARIES])
def test_a_resume_has_the_same_bits(folder: Path, use: str) -> None:
    world = {"use": use, "path": WORLDS, **LIBRARIES[use]} if use in LIBRARIES else IN_CAPSULE
    run("whole", world, world_errors="end")
    run("half", world, world_errors="end", steps=1)
    run("half", world, world_errors="end", resume=True)
    assert_same(folder / "whole", folder / "half")
    assert rows("whole/metrics.jsonl")[0]["reward"] > 0
