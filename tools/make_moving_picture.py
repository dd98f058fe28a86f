"""Draws docs/images/toy-glyph.webp, the moving picture of the first page, from the held-out samples of a run.

grpokit train toy-glyph eval.every=10
python tools/make_moving_picture.py runs/toy-glyph
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from PIL import Image, ImageDraw, ImageFont

FILE = Path(__file__).parent.parent / "docs/images/toy-glyph.webp"
COLUMNS, ROWS, SIZE, GAP, BAR = 3, 4, (192, 96), 12, 64


def frame(folder: Path, steps: int, scores: dict[str, float]) -> Image.Image:
    """Twelve held-out samples of one evaluation, with the step and the mean rewards below them."""
    rows = [json.loads(line) for line in (folder / "samples.jsonl").read_text(encoding="utf-8").splitlines()]
    width, height = COLUMNS * (SIZE[0] + GAP) + GAP, ROWS * (SIZE[1] + GAP) + GAP + BAR
    picture = Image.new("RGB", (width, height), "#eef0f6")
    for place, row in enumerate(rows[: COLUMNS * ROWS]):
        sample = Image.open(folder / row["file"]).convert("RGB").resize(SIZE, Image.Resampling.NEAREST)
        corner = (GAP + place % COLUMNS * (SIZE[0] + GAP), GAP + place // COLUMNS * (SIZE[1] + GAP))
        picture.paste(sample, corner)
    draw, step = ImageDraw.Draw(picture), int(folder.name.removeprefix("step_"))
    words = "   ".join(f"{name} {score:.2f}" for name, score in scores.items())
    draw.text((GAP, height - BAR + 4), f"step {step}   {words}", "#223", ImageFont.load_default(22))
    draw.rectangle((GAP, height - 20, width - GAP, height - 12), "#c8cee0")
    draw.rectangle((GAP, height - 20, GAP + (width - 2 * GAP) * step // steps, height - 12), "#3f51b5")
    return picture


def main(run: Path) -> None:
    """Write the picture: a second for each evaluation, three for the last one."""
    evaluations = [json.loads(line) for line in (run / "eval.jsonl").read_text(encoding="utf-8").splitlines()]
    last = evaluations[-1]["step"]
    frames = [
        frame(run / f"samples/step_{row['step']:06d}", last, {name: row["means"][name] for name in ("ssim", "ocr")})
        for row in evaluations
    ]
    times = [*[900] * (len(frames) - 1), 3000]
    frames[0].save(FILE, save_all=True, append_images=frames[1:], duration=times, loop=0, quality=60, method=6)
    print(f"{FILE.name}: {len(frames)} pictures, {FILE.stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
