"""box-iou and box-format: boxes by hand in both conventions, what counts as an answer, what is refused."""

import itertools
import json
import math
import random
import subprocess
import sys

import pytest
from PIL import Image

import grpokit
from grpokit import DataError, PluginError, Prompt, RewardError, Sample, UsageError
from grpokit_grounding.boxes import Box, iou, read_box
from grpokit_grounding.reward import BoxFormat, BoxIoU, unscorable

TARGET = [10, 10, 20, 30]  # 10 x 20 = 200, or 11 x 21 = 231 pixels
EDGES = pytest.mark.parametrize("edges", ["exclusive", "inclusive"])


def sample(output: object, target: object = None, size: tuple[int, int] | None = None) -> Sample:
    image = None if size is None else Image.new("RGB", size)
    return Sample(prompt=Prompt(text="where is the cup?", target=target, image=image), output=output, group=0)


def answer(box: object) -> str:
    return f"<think>I look.</think>\n<answer>{json.dumps(box)}</answer>"


@pytest.mark.parametrize(
    ("box", "exclusive", "inclusive"),
    [
        ([10, 10, 20, 30], 1.0, 1.0),  # the same
        ([15, 10, 25, 30], 100 / 300, 126 / 336),  # half to the right: 5 x 20 of 400 - 100; 6 x 21 of 462 - 126
        ([10, 10, 20, 20], 100 / 200, 121 / 231),  # the upper half
        ([12, 15, 17, 20], 25 / 200, 36 / 231),  # inside
        ([0, 0, 40, 40], 200 / 1600, 231 / 1681),  # around
        ([5, 5, 15, 20], 50 / 300, 66 / 341),  # a corner: 5 x 10 of 200 + 150 - 50; 6 x 11 of 231 + 176 - 66
        ([20, 10, 30, 30], 0.0, 21 / 441),  # edge on edge: inclusive boxes share a column of 21 pixels
        ([21, 10, 30, 30], 0.0, 0.0),  # the next column
        ([10, 40, 20, 60], 0.0, 0.0),  # below
        ([10.5, 10, 20.5, 30], 190 / 210, 220.5 / 241.5),  # half a pixel: 9.5 x 20 of 400 - 190
    ],
)
def test_iou_by_hand(box, exclusive, inclusive):
    assert BoxIoU()([sample(answer(box), TARGET)]) == pytest.approx([exclusive], abs=1e-12)
    assert BoxIoU(edges="inclusive")([sample(answer(box), TARGET)]) == pytest.approx([inclusive], abs=1e-12)


@EDGES
def test_iou_counts_the_pixels(edges):
    def pixels(box):
        more = edges == "inclusive"
        return set(itertools.product(range(box[0], box[2] + more), range(box[1], box[3] + more)))

    def draw():
        x, y = rng.randrange(9), rng.randrange(9)
        return [x, y, x + rng.randint(1, 9), y + rng.randint(1, 9)]

    rng = random.Random(0)
    some = 0
    for _ in range(200):
        a, b = draw(), draw()
        counted = len(pixels(a) & pixels(b)) / len(pixels(a) | pixels(b))
        first, second = read_box(a, edges), read_box(b, edges)
        assert iou(first, second) == iou(second, first) == pytest.approx(counted, abs=1e-12)
        some += 0 < counted < 1
    assert some > 50, some


@EDGES
def test_each_step_away_costs(edges):
    boxes = [[10 + d, 10 + d, 20 + d, 30 + d] for d in (0, 1, 2, 4, 8, 16)]
    scores = BoxIoU(edges=edges)([sample(answer(box), TARGET) for box in boxes])
    assert scores[0] == 1.0
    assert scores[-1] == 0.0
    assert all(near > far for near, far in itertools.pairwise(scores))


def test_a_threshold_makes_it_zero_or_one():
    rows = [
        sample(answer(box), TARGET) for box in ([10, 10, 20, 30], [10, 10, 20, 20], [15, 10, 25, 30])
    ]  # 1, 1/2, 1/3
    assert BoxIoU(threshold=0.5)(rows) == [1.0, 1.0, 0.0]  # reached is enough
    assert BoxIoU(threshold=0.51)(rows) == [1.0, 0.0, 0.0]
    assert BoxIoU(threshold=1.0)(rows) == [1.0, 0.0, 0.0]
    assert math.isnan(BoxIoU(threshold=0.5)([sample(answer(TARGET))])[0])
    assert BoxIoU(threshold=0.5)([sample("nothing", TARGET)]) == [0.0]


ANSWERS = [
    ("<think>a</think><answer>[10, 10, 20, 30]</answer>", 1, 1),
    (" <think>a\nb</think>\n<answer>\n[10,10,20,30]\n</answer>\n", 1, 1),
    ("<think>a</think><answer>[10.0, 1e1, 20, 30]</answer>", 1, 1),
    ("<think>a</think><answer>[[10, 10, 20, 30]]</answer>", 1, 1),
    ('<think>a</think><answer>{"bbox_2d": [10, 10, 20, 30], "label": "cup"}</answer>', 1, 1),
    ('<think>a</think><answer>[{"bbox": [10, 10, 20, 30]}]</answer>', 1, 1),
    ('<think>a</think><answer>```json\n[\n\t{"bbox_2d": [10, 10, 20, 30], "label": "cup"}\n]\n```</answer>', 1, 1),
    ("<think>a</think><answer>\\boxed{[10, 10, 20, 30]}</answer>", 1, 1),
    ("<think>a</think><answer>\\[ [10, 10, 20, 30] \\]</answer>", 1, 1),
    ('<think>a</think><answer>"[10, 10, 20, 30]"</answer>', 1, 1),
    ("<think>a</think><answer>The cup: [10, 10, 20, 30] (left of {it}).</answer>", 1, 1),
    ("<answer>[10, 10, 20, 30]</answer>", 1, 0),  # no thoughts
    ("<think> </think><answer>[10, 10, 20, 30]</answer>", 1, 0),  # blank thoughts
    ("<answer>[10, 10, 20, 30]</answer><think>a</think>", 1, 0),  # the wrong order
    ("well <think>a</think><answer>[10, 10, 20, 30]</answer>", 1, 0),
    ("<think>a</think> so <answer>[10, 10, 20, 30]</answer>", 1, 0),
    ("<think>a</think><answer>[10, 10, 20, 30]</answer>!", 1, 0),
    ("<think>a</think><think>b</think><answer>[10, 10, 20, 30]</answer>", 1, 0),
    ("<think>a</think><answer>[10, 10, 20, 30]</answer><answer>[0, 0, 1, 1]</answer>", 0, 0),  # two guesses
    ("<think>a</think><answer>[[10, 10, 20, 30], [0, 0, 1, 1]]</answer>", 0, 0),
    ('<think>a</think><answer>{"bbox": [10, 10, 20, 30], "box": [0, 0, 1, 1]}</answer>', 0, 0),
    ("<think>a</think><answer>[10, 10, 20, 30] or [0, 0, 1, 1]</answer>", 0, 0),
    ("<think>a</think><answer>```\n[10, 10, 20, 30]\n```\n```\n[0, 0, 1, 1]\n```</answer>", 0, 0),
    ("<think>a</think><answer>10, 10, 20, 30</answer>", 0, 0),
    ("<think>a</think><answer>[10, 10, 20]</answer>", 0, 0),
    ("<think>a</think><answer>[10, 10, 20, 30, 40]</answer>", 0, 0),
    ('<think>a</think><answer>["10", "10", "20", "30"]</answer>', 0, 0),
    ("<think>a</think><answer>[true, true, 20, 30]</answer>", 0, 0),
    ("<think>a</think><answer>[20, 30, 10, 10]</answer>", 0, 0),  # corners the wrong way round
    ("<think>a</think><answer>[10, 10, 10, 30]</answer>", 0, 0),  # empty
    ("<think>a</think><answer>[NaN, 10, 20, 30]</answer>", 0, 0),
    ("<think>a</think><answer>[-1e999, -1e999, 1e999, 1e999]</answer>", 0, 0),
    (f"<think>a</think><answer>[10, 10, 20, {'9' * 5000}]</answer>", 0, 0),
    (f"<think>a</think><answer>{'[' * 200_000}</answer>", 0, 0),
    ("<think>a</think><answer>[10, 10, 20, 30]", 0, 0),
    ("</answer><think>a</think><answer>[10, 10, 20, 30]", 0, 0),
    ("<think>a</think><answer></answer>", 0, 0),
    ("<think>a</think><answer>null</answer>", 0, 0),
    ("<ANSWER>[10, 10, 20, 30]</ANSWER>", 0, 0),
    ("[10, 10, 20, 30]", 0, 0),
    ("", 0, 0),
]


@pytest.mark.parametrize(("text", "overlap", "form"), ANSWERS, ids=[text[:60] for text, *_ in ANSWERS])
def test_what_counts_as_an_answer(text, overlap, form):
    assert BoxIoU()([sample(text, TARGET)]) == [overlap]
    assert BoxFormat()([sample(text, TARGET), sample(text)]) == [form, form]  # with a target or without


def test_one_pixel_is_a_box_where_edges_are_inclusive():
    pixel = answer([3, 4, 3, 4])
    assert BoxIoU(edges="inclusive")([sample(pixel, [3, 4, 3, 4]), sample(pixel, [3, 4, 4, 4])]) == [1.0, 0.5]
    assert BoxFormat(edges="inclusive")([sample(pixel)]) == [1.0]
    assert BoxFormat()([sample(pixel)]) == [0.0]
    assert BoxFormat(edges="inclusive")([sample(answer([3, 4, 2.5, 4]))]) == [0.0]  # half a pixel wide, but reversed


@pytest.mark.parametrize(
    "target",
    [[10, 10, 20, 30], (10, 10, 20, 30), [10.0, 10, 20, 30.0], "[10, 10, 20, 30]", ' {"bbox": [10,10,20,30]} '],
)
def test_targets_are_lists_or_json(target):
    assert BoxIoU()([sample(answer([10, 10, 20, 20]), target)]) == [0.5]


@pytest.mark.parametrize(
    ("box", "edges", "overlap"),
    [
        ([100, 100, 500, 500], "exclusive", 1.0),
        ([100, 100, 300, 500], "exclusive", 0.5),
        # [40.96, 23.04, 204.8, 115.2] in pixels, of which 140.8 x 67.2 lie in the target
        ([64, 48, 320, 240], "exclusive", 140.8 * 67.2 / (256 * 192 + 163.84 * 92.16 - 140.8 * 67.2)),
        ([100, 100, 499, 499], "inclusive", 256 * 192 / (257 * 193)),  # up to 320 and 240, the target a pixel more
    ],
)
def test_answers_of_another_scale(box, edges, overlap):
    """Of a picture that is wider than high: the two sides have factors of their own, .64 and .48."""
    reward = BoxIoU(scale=1000, edges=edges)
    assert reward([sample(answer(box), [64, 48, 320, 240], (640, 480))]) == pytest.approx([overlap], abs=1e-12)
    assert math.isnan(reward([sample(answer(box), [64, 48, 320, 240])])[0])
    assert unscorable(sample("", TARGET).prompt, scale=1000) == "there is no source picture"
    with pytest.raises(UsageError, match="box-iou: scale must be above 0"):
        BoxIoU(scale=0)


@pytest.mark.parametrize(
    ("box", "reason"),
    [
        ([150, 200, 700, 900], "it lies outside of the picture of 80 x 40 pixels"),
        ([1, 1, 30, 43], "outside"),  # as of a picture of another size
        ([-3, 1, 30, 30], None),
        ([-5, 1, 30, 30], "outside"),
        ([1, 1, 84, 41], None),
        ([1, -3, 84, 41], "outside"),
        ([0.1, 0.2, 0.7, 0.9], "in the picture of 80 x 40 pixels it is less than a pixel wide or high"),
        ([3, 4, 4, 5], None),
        ([3, 4, 4, 4.5], "less than a pixel"),
    ],
)
def test_a_target_lies_in_the_picture(box, reason):
    """People draw a twentieth of a side beyond it, not more; other coordinates are found before the first step."""
    one = sample("no box", box, (80, 40))
    if reason is None:
        assert unscorable(one.prompt) == ""
        return
    for call in (lambda: unscorable(one.prompt), lambda: BoxIoU()([one])):
        with pytest.raises(DataError, match=reason):
            call()


@pytest.mark.parametrize(
    ("boxes", "scale", "reason"),
    [
        (([150, 200, 700, 900], [1, 2, 500, 600], [3, 4, 50, 30]), None, "6 cannot be right, .* lies outside of"),
        (([0.1, 0.2, 0.7, 0.9], [0.1, 0.2, 0.7, 0.4], [1, 2, 30, 40]), None, "6 cannot be right, .* less than a pixel"),
        (([10, 20, 70, 35], [10, 20, 60, 30], [500, 100, 900, 800]), 1000, "6 cannot be right, .* less than a pixel"),
        (([150, 200, 700, 900], [3, 4, 50, 30], [5, 4, 50, 30]), None, None),
        (([150, 200, 700, 900], [300, 400, 500, 600], [0, 0, 999, 999]), 1000, None),
    ],
)
def test_answers_of_a_scale_that_nobody_named(boxes, scale, reason):
    """Most answers to pictures of 80 x 40 pixels; it is said once, and not of a few answers."""
    rows = [sample(answer(box), [5, 5, 30, 30], (80, 40)) for box in boxes]
    reward = BoxIoU(scale=scale)
    reward(rows)
    rows *= 3
    if reason is not None:
        with pytest.warns(UserWarning, match=f"^box-iou: of 9 boxes in answers {reason}.* Set .scale. to what"):
            reward(rows)
    reward(rows)


def test_a_row_without_a_target_cannot_be_scored():
    scores = BoxIoU()([sample(answer(TARGET)), sample(answer(TARGET), TARGET), sample("no box")])
    assert [math.isnan(x) for x in scores] == [True, False, True]
    assert scores[1] == 1.0


@pytest.mark.parametrize(
    ("target", "said"),
    [
        ("a cup", "'a cup': it is not JSON"),
        ("", "'': it is not JSON"),
        (12, "12: it is a int, not a list"),
        ({"bbox": [1, 2, 3, 4]}, "it is a dict, not a list"),
        ('{"corners": [1, 2, 3, 4]}', "its object should have one of the keys bbox_2d, bbox, box, and has 0"),
        ([1, 2, 3], r"\[1, 2, 3\]: it has 3 entries"),
        ([1, 2, 3, "4"], "its y2 is a str, not a number"),
        ([1, True, 3, 4], "its y1 is a bool, not a number"),
        ([1, 2, math.nan, 4], "its x2 is not a number between -1,000,000,000 and 1,000,000,000"),
        ([1, 2, 3, 10**400], r"\.\.\.: its y2 is not a number between -1,000,000,000 and 1,000,000,000"),
        ([30, 10, 20, 40], "its second corner is not right of and below its first; a width and a height are none"),
        ([10, 10, 20, 10], r"it is empty \(with exclusive edges\)"),
    ],
)
def test_a_wrong_target_is_refused(target, said):
    wrong = rf"as the target, got .*{said}\. Correct the target"
    with pytest.raises(DataError, match=rf"^The target of row 1 \(prompt 'where is the cup\?'\): .*{wrong}"):
        BoxIoU()([sample("no box", TARGET), sample("no box", target)])
    with pytest.raises(DataError, match=wrong):
        unscorable(sample("no box", target).prompt)


def test_which_prompts_can_be_scored():
    flat = Prompt(text="where is the cup?", target=[10, 10, 20, 10])
    assert "no target" in unscorable(Prompt(text="where is the cup?"))
    assert unscorable(sample("no box", TARGET).prompt) == unscorable(flat, edges="inclusive") == ""


def test_the_message_says_what_the_convention_allows():
    rows = [sample("no box", [3, 4, 2, 4])]
    with pytest.raises(UsageError, match="x1 < x2 and y1 < y2 in pixels"):
        BoxIoU()(rows)
    with pytest.raises(UsageError, match="x1 <= x2 and y1 <= y2 in pixels"):
        BoxIoU(edges="inclusive")(rows)


@pytest.mark.parametrize("reward", [BoxIoU(), BoxFormat()])
@pytest.mark.parametrize(("output", "named"), [(None, "NoneType"), ([1, 2, 3, 4], "list"), (b"<answer>", "bytes")])
def test_an_output_that_is_no_text_is_refused(reward, output, named):
    name = "box-iou" if isinstance(reward, BoxIoU) else "box-format"
    with pytest.raises(RewardError, match=rf"a text as the output of row 1 \(reward '{name}'\), got {named}\. This"):
        reward([sample("", TARGET), sample(output, TARGET)])


@pytest.mark.parametrize("threshold", [0, -0.5, 1.01, math.nan, math.inf])
def test_a_threshold_out_of_range_is_refused(threshold):
    with pytest.raises(UsageError, match="box-iou: threshold must lie above 0 and at most at 1"):
        BoxIoU(threshold=threshold)


def test_unknown_edges_are_refused():
    with pytest.raises(UsageError, match="box-iou: edges must be 'exclusive' or 'inclusive', got 'open'"):
        BoxIoU(edges="open")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="box-format: edges must be"):
        BoxFormat(edges="open")  # type: ignore[arg-type]
    with pytest.raises(PluginError, match="edges must be 'exclusive' or 'inclusive', got 'open'"):
        grpokit.create("reward", "box-iou", {"edges": "open"})


def test_scores_never_leave_the_range():
    rng = random.Random(1)
    for _ in range(2000):
        size = 10 ** rng.uniform(-12, 8)
        a, b = (
            Box(x1=x, y1=y, x2=x + size * rng.random(), y2=y + size * rng.random())
            for x, y in ((rng.uniform(-size, size), rng.uniform(-size, size)) for _ in range(2))
        )
        assert iou(a, a) == 1.0
        assert 0 <= iou(a, b) <= 1


def test_the_registry_finds_both():
    rows = [sample(answer([10, 10, 20, 20]), TARGET)]
    assert grpokit.create("reward", "box-iou")(rows) == [0.5]
    assert grpokit.create("reward", "box-iou", {"threshold": 0.75})(rows) == [0.0]
    assert grpokit.create("reward", "box-format")(rows) == [1.0]


def test_announcing_and_scoring_import_nothing_heavy():
    code = """
import sys
import grpokit_grounding.plugin
specs = {spec.name: spec.range for spec in grpokit_grounding.plugin.grpokit_rewards()}
assert specs == {"box-iou": (0, 1), "box-format": (0, 1), "crop-match": (None, None)}
import grpokit_grounding.reward
assert not {"numpy", "PIL", "torch"} & set(sys.modules), sorted(sys.modules)
"""
    subprocess.run([sys.executable, "-W", "error", "-c", code], check=True)
