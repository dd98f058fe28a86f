"""`grpokit score` refuses pictures that are too large, one by one."""

from __future__ import annotations

from pathlib import Path

from PIL import Image

from command_line import Call
from command_line import call as call


def test_a_limit_on_pixels(call: Call) -> None:
    for name, width in (("1", 10), ("2", 20)):
        Image.new("L", (width, 10)).save(f"{name}.png")
    Path("p.txt").write_text("one\ntwo\n")
    folders = ("--prompts", "p.txt", "--targets", ".", "--reward", "mse")
    assert call("score", ".", *folders).code == 0
    done = call("score", ".", *folders, "--max-pixels", 199)
    assert done.code == 2
    assert "p.txt, line 2: 2.png has 20 x 10 = 200 pixels; the limit is 199. Make it smaller, or raise" in done.err
    Path("x.jsonl").write_text('{"prompt": "a", "target": "1.png", "output": "2.png"}\n')
    done = call("score", "x.jsonl", "--reward", "mse", "--max-pixels", 199)
    assert done.code == 2
    assert "2.png has 20 x 10 = 200 pixels" in done.err
    done = call("score", "2.png", "--reward", "mse", "--prompt", "a", "--target", "1.png", "--max-pixels", 99)
    assert "--target: 1.png has 10 x 10 = 100 pixels; the limit is 99" in done.err
