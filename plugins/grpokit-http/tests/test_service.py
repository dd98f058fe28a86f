"""Rewards behind HTTP: the same scores as in the run's own process, whatever else reaches the service."""

from __future__ import annotations

import base64
import json
import math
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import ExifTags, Image
from served_rewards import fingerprint

from command_line import Call, config
from grpokit import Prompt, RewardError, Sample, UsageError
from grpokit.rewards.remote import ENDING
from grpokit.rewards.scoring import score_samples
from grpokit.rewards.terms import RewardTerm
from grpokit.rewards.worker_pool import PooledReward
from grpokit_http import wire
from grpokit_http.reward import TOKEN, RemoteReward
from grpokit_http.service import RewardService
from grpokit_http.wire import WireError, from_json, to_json


@contextmanager
def serving(name: str, *, port: int = 0, **options: Any) -> Iterator[RewardService]:
    service = RewardService(PooledReward(f"served_rewards:{name}", per_sample=False), port=port, **options)
    thread = threading.Thread(target=service.run)
    thread.start()
    try:
        yield service
    finally:
        service.server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def service() -> Iterator[RewardService]:
    with pytest.MonkeyPatch.context() as patch, serving("fingerprint", token="a secret", most_body=2**20) as found:
        patch.setattr(wire, "SAMPLES", 300)
        patch.setattr(wire, "PIXELS", 50_000)
        yield found


@pytest.fixture
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process knows the token."""
    monkeypatch.setenv(TOKEN, "a secret")


def picture(seed: int, mode: str = "RGB") -> Image.Image:
    return Image.fromarray(np.random.default_rng(seed).integers(0, 256, (6, 8, 3), dtype=np.uint8)).convert(mode)


def samples(groups: int, size: int) -> list[Sample]:
    """Texts, pictures, numbers and whatever else a sample may hold."""
    odd = {3: None, "x": b"\x00\xff"}
    meta = {"box": (1, 2.5, math.inf), "$odd": odd, "tensor": torch.arange(3, dtype=torch.bfloat16)}
    found = []
    for group in range(groups):
        source, target = picture(group + 1), picture(group, "L")
        prompt = Prompt(text=f"prompt {group} \U0001f600", target=target, meta=meta, images=(source,))
        for i in range(size):
            kinds = [f"text {i}", picture(i, "RGBA"), np.arange(i + 1.0), "", torch.tensor(0.1 * i)]
            found.append(Sample(prompt=prompt, output=kinds[(group + i) % 5], group=group, info={"tokens": i}))
    return found


def test_what_is_sent_comes_back() -> None:
    there = samples(5, 5)
    again = from_json(to_json(there))
    assert np.array_equal(fingerprint(there), fingerprint(again), equal_nan=True)
    assert again[0].prompt is again[1].prompt
    assert from_json(to_json([replace(there[0], info={"x": np.float32(0.5)})]))[0].info == {"x": 0.5}


def transparent() -> list[Image.Image]:
    """Palettes with alpha, and one colour or grey that is transparent."""
    alpha = Image.fromarray(np.random.default_rng(0).integers(0, 256, (6, 8), dtype=np.uint8))
    rgba, paletted, grey, coloured = picture(0, "RGBA"), picture(0, "P"), picture(0, "L"), picture(0)
    rgba.putalpha(alpha)
    paletted.info["transparency"] = paletted.getpixel((0, 0))
    grey.info["transparency"] = grey.getpixel((0, 0))
    coloured.info["transparency"] = coloured.getpixel((1, 1))
    return [rgba, rgba.quantize(), paletted, grey, coloured]


def test_pictures_stay_as_transparent_as_they_are() -> None:
    for there in transparent():
        there.info["icc_profile"] = "none"  # that Pillow could not write
        sent = to_json([Sample(prompt=Prompt(text=""), output=there, group=0)])
        here = from_json(sent)[0].output
        assert here.mode == there.mode
        shown, again = there.convert("RGBA"), here.convert("RGBA")
        assert shown.getchannel("A").getextrema()[0] < 255
        assert shown.tobytes() == again.tobytes()


def test_a_picture_arrives_as_viewers_show_it() -> None:
    lying = picture(0)
    lying.getexif()[ExifTags.Base.Orientation] = 6
    (sample,) = from_json(to_json([Sample(prompt=Prompt(text=""), output=lying, group=0)]))
    assert np.array_equal(np.asarray(sample.output), np.rot90(np.asarray(lying), -1))


def test_numbers_stay_what_they_are() -> None:
    negative = torch.tensor([1j]).conj().imag  # a view that only says so
    (sample,) = from_json(to_json([Sample(prompt=Prompt(text=""), output=negative, group=0)]))
    assert sample.output.tolist() == [-1]
    (sample,) = from_json(to_json([Sample(prompt=Prompt(text=""), output=np.array(2.5), group=0)]))
    assert (sample.output.shape, float(sample.output)) == ((), 2.5)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"output": object()}, "`output` of sample 1 .* an object"),
        ({"output": np.ma.masked_array([1.0, 2.0], [True, False])}, "`output` of sample 1 .* a MaskedArray"),
        ({"output": np.array(["text"])}, "`output` of sample 1 .* SafetensorError"),
        ({"info": {"x": torch.eye(2).to_sparse()}}, "`info` of sample 1 .* Runtime"),
        ({"output": Image.new("L", (0, 0))}, "`output` of sample 1 .* (Value|System)Error"),
        ({"info": {"x": 10**5000}}, "Exceeds the limit"),
        ({"info": {"x": np.longdouble(1)}}, "`info` of sample 1 "),
        ({"info": {"a": [1, {2}]}}, "`info` of sample 1 .* a set"),
        ({"output": Image.new("CMYK", (2, 2))}, "`output` of sample 1 .* the mode 'CMYK'"),
        ({"output": Image.new("I", (2, 2))}, "`output` of sample 1 .* the mode 'I'"),
    ],
)
def test_what_cannot_be_sent_is_named(changes: dict[str, Any], message: str) -> None:
    one = samples(1, 1)[0]
    with pytest.raises(UsageError, match=message):
        to_json([one, replace(one, **changes)])


@pytest.mark.usefixtures("known")
def test_scores_are_those_of_the_own_process(service: RewardService) -> None:
    """From two clients at once."""
    there = samples(40, 5)
    here = fingerprint(there)
    found: list[list[float]] = []

    def ask() -> None:
        reward = RemoteReward([service.address], use="served_rewards:fingerprint")
        found.append(reward(there))
        reward.close()

    clients = [threading.Thread(target=ask) for _ in range(2)]
    for client in clients:
        client.start()
    for client in clients:
        client.join()
    assert len(found) == 2
    assert all(np.array_equal(here, scores, equal_nan=True) for scores in found)


def chunk(kind: bytes, data: bytes) -> bytes:
    return len(data).to_bytes(4, "big") + kind + data + zlib.crc32(kind + data).to_bytes(4, "big")


def png(width: int, height: int) -> str:
    """A picture of zeros, which is small however large it is."""
    rows = zlib.compress(bytes(1 + width) * height, 9) if width * height < 10**8 else b""
    head = width.to_bytes(4, "big") + height.to_bytes(4, "big") + b"\x08\x00\x00\x00\x00"
    data = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")
    return base64.b64encode(data).decode()


def hostile(draw: random.Random) -> list[Any]:
    """Bodies that are no request."""
    good = json.loads(to_json(samples(1, 5)))
    truncated = good["samples"][1]["output"]["$png"]
    outputs = [
        *(
            {"$png": text}
            for text in (truncated[: 4 * (len(truncated) // 8)], "", "%%%", 7, None, [], png(100_000, 100_000))
        ),
        *({"$png": text} for text in (png(300, 300), base64.b64encode(b"GIF89a").decode())),
        *(
            {kind: value}
            for kind in ("$tensor", "$array", "$bytes", "$float", "$dict", "$tuple", "$png")
            for value in ("A", "AAA", base64.b64encode(b"\xff" * 64).decode() + "!", 3, {"a": 1}, {"$tuple": 1})
        ),
        {"$pickle": "gASVAAAA"},
        {"$png": "", "$float": "1"},
        {"$dict": [[[], 1]]},
    ]
    bodies: list[Any] = [{**good, "samples": [{**good["samples"][0], "output": output}]} for output in outputs]
    first, prompt = good["samples"][0], good["prompts"][0]
    for change in (
        {"prompt": 5}, {"prompt": -1}, {"prompt": "0"}, {"prompt": True}, {"group": 1.5}, {"group": None}, {"info": []},
        {"info": {"$float": "1"}}, {"further": 1},
    ):  # fmt: skip
        bodies.append({**good, "samples": [{**first, **change}]})
    for change in ({"text": 3}, {"text": None}, {"images": []}, {"images": {"$tuple": ["x"]}}, {"meta": []}, {"x": 1}):
        bodies.append({**good, "prompts": [{**prompt, **change}]})
    bodies += [{**good, "protocol": 2}, {**good, "protocol": "1"}, {**good, "samples": {}}, {**good, "prompts": None}]
    bodies += [{**good, "samples": [first] * 301}, {"samples": []}, [], 3, None, "text"]
    raw = [b"", b"{", b"\xff\xfe", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 10_000, b"NaN,"]
    whole = to_json(samples(1, 3))
    for _ in range(120):
        broken = bytearray(whole)
        for _ in range(3):
            broken[draw.randrange(len(broken))] = draw.choice(b'{}[]",:\x00\xff')
        raw.append(bytes(broken)[: draw.randrange(1, len(broken))])
    return [*bodies, *raw]


def asked(service: RewardService, request: bytes) -> bytes:
    """The first line of the answer to some bytes."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as end:
        with suppress(OSError):  # it may have answered and closed before all was sent
            end.sendall(request)
        try:
            return end.recv(4096).split(b"\r\n")[0]
        except OSError:
            return b""


def post(body: bytes, **headers: str) -> bytes:
    fields = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Authorization": "Bearer a secret"}
    fields |= {name.replace("_", "-"): value for name, value in headers.items()}
    lines = [b"POST /score HTTP/1.1", b"Host: x", *(f"{k}: {v}".encode("latin-1") for k, v in fields.items() if v)]
    return b"\r\n".join(lines) + b"\r\n\r\n" + body


@pytest.mark.usefixtures("known")
def test_two_hundred_hostile_requests_get_a_4xx_and_the_service_lives(
    service: RewardService, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("grpokit_http.service._PAUSE", 1.0)
    bodies = [body if isinstance(body, bytes) else json.dumps(body).encode() for body in hostile(random.Random(0))]
    good = to_json(samples(1, 1))
    requests = [post(body) for body in bodies] + [
        post(good, Authorization=""),
        post(good, Authorization="Bearer wrong"),
        post(good, Authorization="Bearer \xe9"),
        post(good, Content_Type="text/plain"),
        post(good, Content_Length=""),
        post(good, Content_Length="-5"),
        post(good, Content_Length="9" * 30),
        post(good, Content_Length=str(100 * 2**20)),
        post(good).replace(b"\r\n\r\n", b"\r\nContent-Length: 5\r\n\r\n", 1),
        post(good, Transfer_Encoding="chunked"),
        post(b"[" + b"[]," * 1_000_000 + b"[]]"),
        post(good).replace(b"/score", b"/health"),
        post(good).replace(b"/score", b"/../etc/passwd"),
        b"GET /score HTTP/1.1\r\nAuthorization: Bearer a secret\r\n\r\n",
        b"GET /" + b"a" * 70_000 + b" HTTP/1.1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n" + b"X: y\r\n" * 500 + b"\r\n",
    ]
    assert len(requests) > 200
    answers = [asked(service, request) for request in requests]
    wrong = [
        (answer, request[-200:]) for answer, request in zip(answers, requests, strict=True) if b" 4" not in answer[:12]
    ]
    assert not wrong, wrong
    for garbage in (b"\x16\x03\x01" + b"\xff" * 300, b"\r\n\r\n", b"DELETE / HTTP/1.1\r\n\r\n"):
        assert b" 200 " not in asked(service, garbage)
    assert caplog.text == ""  # no traceback either
    reward = RemoteReward([service.address])
    assert np.array_equal(reward(samples(2, 5)), fingerprint(samples(2, 5)), equal_nan=True)
    reward.close()


def test_a_body_that_does_not_come_costs_its_own_connection(
    service: RewardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpokit_http.service._PAUSE", 0.3)
    assert b" 408 " in asked(service, post(b"{", Content_Length="1000"))


@pytest.mark.parametrize("start", [b"", pytest.param(post(b"", Content_Length="100000"), marks=pytest.mark.slow)])
def test_a_drip_costs_its_own_connection_until_its_time_is_over(
    start: bytes, service: RewardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpokit_http.service._PAUSE", 0.5)
    with socket.create_connection(("127.0.0.1", service.port), timeout=20) as end:
        begin = time.monotonic()
        with suppress(OSError):  # the service has closed it
            end.sendall(start)
            for _ in range(100):
                end.sendall(b"x")
                time.sleep(0.05)
        assert 0.4 < time.monotonic() - begin < 2


@pytest.mark.parametrize(
    "request_",
    [
        post(b"", Authorization="", Content_Length="1000"),
        post(b"{", Content_Type="text/plain", Content_Length="1000"),
        b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n" * 2,
        b"GET /health HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer a secret\r\n\r\n",
        b"PUT /nowhere HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n",
        b"POST /score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
    ],
)
def test_an_answer_ends_its_connection(
    request_: bytes, service: RewardService, caplog: pytest.LogCaptureFixture
) -> None:
    """Or a refused stranger could keep it with the rest of a body, or with further requests."""
    with socket.create_connection(("127.0.0.1", service.port), timeout=2) as end:
        end.sendall(request_)
        answer = b""
        with suppress(ConnectionResetError):  # where something that was sent is not read
            while part := end.recv(4096):
                answer += part
    assert answer.count(b"HTTP/1.1 ") == 1
    assert caplog.text == ""


def test_a_flood_of_chunks_keeps_no_client_waiting(service: RewardService) -> None:
    flood = b"POST /score HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n" + b"1\r\nx\r\n" * 30_000
    with ExitStack() as stack:
        begin = time.monotonic()
        for _ in range(20):
            end = stack.enter_context(socket.create_connection(("127.0.0.1", service.port), timeout=20))
            with suppress(OSError):  # the service has closed it
                end.sendall(flood)
        assert asked(service, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")
        assert time.monotonic() - begin < 2


@pytest.mark.usefixtures("known")
def test_a_client_is_answered_while_strangers_hold_all_connections(
    service: RewardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpokit_http.service._CONNECTIONS", 20)
    with ExitStack() as stack:
        refused = post(b"", Authorization="", Content_Length="9")
        for start in [b"", b"POST", post(b"{", Content_Length="9")] * 10 + [refused] * 7:
            end = socket.create_connection(("127.0.0.1", service.port), timeout=20)
            stack.enter_context(end).sendall(start)
        begin = time.monotonic()
        reward = RemoteReward([service.address])
        there = [Sample(prompt=Prompt(text="p"), output="x", group=0)]
        assert reward(there) == fingerprint(there)
        assert time.monotonic() - begin < 2
        reward.close()


@pytest.mark.parametrize("start", [b"", b"POST", post(b"{", Content_Length="1000")])
def test_a_service_that_is_told_to_end_waits_for_no_request(start: bytes) -> None:
    with ExitStack() as stack:
        service = stack.enter_context(serving("fingerprint", token="a secret"))
        with socket.create_connection(("127.0.0.1", service.port), timeout=20) as end:
            end.sendall(start)
            assert asked(service, b"GET /health HTTP/1.1\r\nHost: x\r\n\r\n")  # so the first has come, too
            begin = time.monotonic()
            stack.close()
            assert time.monotonic() - begin < 2


def test_without_a_token_another_name_is_not_answered() -> None:
    """A page of the web may let its own name point to this machine."""
    with serving("fingerprint") as service:
        for host, state in ((b"evil.example", b"403"), (b"", b"403"), (b"localhost:8009", b"200"), (b"[::1]", b"200")):
            request = b"GET /health HTTP/1.1\r\nHost: " + host + b"\r\n\r\n"
            assert asked(service, request).split()[1] == state


def headed(*sizes: tuple[int, int]) -> str:
    """A picture that has only headers, and could not be unpacked."""
    heads = [w.to_bytes(4, "big") + h.to_bytes(4, "big") + b"\x08\x00\x00\x00\x00" for w, h in sizes]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(chunk(b"IHDR", head) for head in heads) + chunk(b"IDAT", b"")
    return base64.b64encode(data).decode()


@pytest.mark.parametrize(
    "pictures",
    [
        [png(7000, 6000)],  # larger than those of training
        [headed((6000, 6000))] * 8,
        [headed((6000, 6000), (1, 1)), *[headed((1, 1), (6000, 6000))] * 8],
    ],
)
def test_too_many_pixels_are_refused_before_any_are_unpacked(pictures: list[str]) -> None:
    good = json.loads(to_json(samples(1, 1)))
    prompt, sample, packed = good["prompts"][0], good["samples"][0], [{"$png": text} for text in pictures]
    images, output = {"$tuple": packed[:1]}, packed[1:]
    changed = {**good, "prompts": [{**prompt, "images": images}], "samples": [{**sample, "output": output}]}
    with pytest.raises(WireError, match="more pixels than it may hold"):
        from_json(json.dumps(changed).encode())


@pytest.mark.parametrize("content", [None, [], {}, 3, {"samples": []}])
def test_a_request_is_an_object_of_three(content: object) -> None:
    with pytest.raises(WireError, match="Expected an object with protocol, prompts and samples, got "):
        from_json(json.dumps(content).encode())


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("protocol", True, "Expected a protocol that is a whole number, got a bool"),
        ("protocol", "1", "Expected a protocol that is a whole number, got a str"),
        ("protocol", wire.PROTOCOL + 1, f"speaks protocol {wire.PROTOCOL}, and the request protocol"),
        ("protocol", {"$png": base64.b64encode(b"GIF89a").decode()}, "holds a PNG"),
        ("prompts", [3], "an object with text, images, target and meta, got an int"),
        ("prompts", [{"$png": png(2, 3)}], "an object with text, images, target and meta, got an Image"),
        ("samples", [{"prompt": 0}], r"an object with prompt, output, group and info, got keys \(prompt\)"),
        ("samples", [{"prompt": 5, "output": "", "group": 0, "info": {}}], "one of 1, counted from 0, got 5"),
    ],
)
def test_what_a_request_lacks_is_named(key: str, value: object, message: str) -> None:
    good = json.loads(to_json(samples(1, 1)))
    with pytest.raises(WireError, match=message) as error:
        from_json(json.dumps({**good, key: value}).encode())
    assert " at 0x" not in str(error.value)


def test_a_request_in_which_a_key_appears_twice_is_refused() -> None:
    good = to_json(samples(1, 1))
    with pytest.raises(WireError, match="the key 'samples' appears twice"):
        from_json(good[:-1] + b', "samples": []}')


@pytest.mark.parametrize(("part", "count"), [(b"[],", 200), (b'{"a":0},', 200), (b'"ab",', 1000), (b"1.5,", 1000)])
def test_a_request_with_too_many_values_is_refused_unread(
    part: bytes, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("grpokit_http.json_limits.LISTS", 100)
    monkeypatch.setattr("grpokit_http.json_limits.VALUES", 1000)
    with pytest.raises(WireError, match=r"has more than .* lists and objects or "):
        from_json(b"[" + part * count + b"0]")


@pytest.mark.usefixtures("known")
@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"use": "length"}, "serves served_rewards:fingerprint in .* asks for length "),
        (
            {"use": "served_rewards:fingerprint", "params": {"a": 1}},
            "asks for served_rewards:fingerprint a=1 ",
        ),
        ({"token": "other"}, r"refused the request \(HTTP 401 Unauthorized: Expected the token.*GRPOKIT_REWARD_TOKEN"),
        ({"urls": ["http://127.0.0.1:9"]}, r"did not answer \(\[Errno 111\] Connection refused\). Start it with"),
        (
            {"urls": ["http://127.0.0.1:9"], "use": "length", "params": {"maximum": 3, "unit": "two words"}},
            "`grpokit serve-reward length maximum=3 'unit=\"two words\"'`",
        ),
        ({"urls": ["gpu-2:8009"]}, r"http must be an address such as http://gpu-2:8009, got 'gpu-2:8009'"),
    ],
)
def test_another_service_is_refused_at_once(
    options: dict[str, Any], message: str, service: RewardService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(TOKEN, options.pop("token", "a secret"))
    with pytest.raises(UsageError, match=message):
        RemoteReward(**{"urls": [service.address], **options}).start()


def test_its_plugin_is_needed_at_the_service_only(tmp_path: Path, call: Call) -> None:
    with serving("dies") as service:
        service.reward.use = "of-another-environment"
        there = {"use": "of-another-environment", "placement": {"http": service.address}}
        done = call("train", config(tmp_path, rewards=[there]), "--dry-run")
        assert done.code == 0, done.err
        assert service.scored == 4


def scored(reward: RemoteReward, outputs: list[Any], **settings: Any) -> Any:
    there = [Sample(prompt=Prompt(text="p"), output=text, group=i // 2) for i, text in enumerate(outputs)]
    return score_samples([RewardTerm(name="it", reward=reward, **settings)], there)


def test_a_reward_that_fails_there_fails_as_it_would_here() -> None:
    """`on_error` decides; its process is started again."""
    with serving("dies") as service:
        reward = RemoteReward([service.address])
        with pytest.raises(RewardError, match="Reward 'it' raised ValueError: no such word"):
            scored(reward, ["a", "raise"])
        with pytest.raises(RewardError, match="lost its worker process, which ended with exit code 3"):
            scored(reward, ["a", "die"])
        found = scored(reward, ["a", "die", "abc", "ab", "abcd", "a"], on_error="skip", skip_limit=0.5)
        assert found.matrix[2:, 0].tolist() == [3, 2, 4, 1]
        assert found.failed == [2]
        reward.close()


@pytest.mark.slow
def test_a_service_that_is_gone_is_replaced_by_another_or_fails_in_words(monkeypatch: pytest.MonkeyPatch) -> None:
    """1,000 samples, while one of two services is ended and started again, twice."""
    texts = [Prompt(text=f"prompt {group}") for group in range(200)]
    there = [Sample(prompt=texts[i // 5], output=f"text {i}", group=i // 5) for i in range(1000)]
    expected = fingerprint(there)
    with serving("fingerprint") as steady, ExitStack() as stack:
        second = stack.enter_context(serving("fingerprint"))
        port = second.port
        reward = RemoteReward([steady.address, second.address])
        pending = reward.submit(there)
        for _ in range(2):
            stack.close()
            stack.enter_context(serving("fingerprint", port=port))
        found = np.full(len(there), np.nan)
        for portion in pending:
            assert (portion.failure, portion.error) == ("", None)
            found[list(portion.rows)] = portion.values
        assert np.array_equal(found, expected, equal_nan=True)
        assert reward(there[:10]) is not None
    monkeypatch.setattr("grpokit_http.reward._PATIENCE", 0.5)
    with pytest.raises(RewardError, match=r"could not be asked: .*Connection refused"):
        reward(there[:5])
    reward.close()


@pytest.mark.slow
def test_a_service_that_starts_anew_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Longer than the first new tries take; one that stays away is given up."""
    there = [Sample(prompt=Prompt(text="p"), output=str(i), group=i) for i in range(4)]
    with ExitStack() as stack:
        service = stack.enter_context(serving("fingerprint"))
        reward = RemoteReward([service.address])
        reward.start()
        stack.close()
        pending = reward.submit(there)
        time.sleep(2)
        stack.enter_context(serving("fingerprint", port=service.port))
        assert [portion.failure for portion in pending] == [""] * 4
    monkeypatch.setattr("grpokit_http.reward._PATIENCE", 0.3)
    assert all("could not be asked: " in portion.failure for portion in reward.submit(there))
    assert caplog.text.count(f"The reward service {service.address} did not answer") == 2  # once each time


def test_a_group_that_is_too_large_says_how_more_may_be_sent() -> None:
    with serving("fingerprint", most_body=2**20) as service:
        reward = RemoteReward([service.address])
        large = Image.fromarray(np.random.default_rng(0).integers(0, 256, (700, 700, 3), dtype=np.uint8))
        with pytest.raises(UsageError, match=r"refused the request .*--max-body"):
            scored(reward, [large, large])
        reward.close()


def test_a_run_that_is_told_to_end_waits_for_no_service() -> None:
    with serving("fingerprint") as service:
        reward = RemoteReward([service.address])
        reward.start()
    pending = reward.submit([Sample(prompt=Prompt(text="p"), output="x", group=0)])
    time.sleep(0.5)
    start = time.monotonic()
    ENDING.set()
    try:
        assert "could not be asked: " in next(iter(pending)).failure
        assert time.monotonic() - start < 2
    finally:
        ENDING.clear()
    reward.close()


@pytest.mark.parametrize("token", ["secret\x01", "secret-\u20ac"])
def test_a_token_stays_out_of_messages(token: str, service: RewardService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN, token)
    with pytest.raises(UsageError, match=f"environment variable {TOKEN} has characters that cannot be sent") as error:
        RemoteReward([service.address]).start()
    assert "secret" not in str(error.value)
    monkeypatch.setenv(TOKEN, "a secret\r\n")  # of a file with another system's ends of lines
    reward = RemoteReward([service.address])
    reward.start()
    reward.close()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://user:hunter2@gpu-2:8009", "http has a user, a password, a query or a fragment in it"),
        ("http://[::1", r"http must be an address such as http://gpu-2:8009, got 'http://\[::1'"),
        (f"http://{'a' * 64}:8009", "http must be an address such as"),
        ("http://gpu-2:99999", "http must be an address such as"),
    ],
)
def test_addresses_that_cannot_be_asked(url: str, message: str) -> None:
    with pytest.raises(UsageError, match=message) as error:
        RemoteReward([url])
    assert "hunter2" not in str(error.value)


def test_a_port_that_is_taken(service: RewardService, call: Call) -> None:
    port = str(service.port)
    done = call("serve-reward", "length", "--port", port)
    assert done.code == 2
    assert done.err.startswith(f"error: Cannot listen on 127.0.0.1, port {port}: [Errno 98] Address already in use")


@pytest.mark.slow
def test_a_slow_service_works_beside_other_rewards() -> None:
    with serving("slow") as service:
        reward = RemoteReward([service.address], timeout=20)
        reward.start()

        def here(samples: Any) -> list[float]:
            time.sleep(0.5)
            return [0.0] * len(samples)

        there = [Sample(prompt=Prompt(text="p"), output="x", group=0) for _ in range(2)]
        start = time.monotonic()
        score_samples([RewardTerm(name="there", reward=reward), RewardTerm(name="here", reward=here)], there)
        assert time.monotonic() - start < 0.95
        late = RemoteReward([service.address], timeout=0.1)
        assert next(iter(late.submit(there[:1]))).failure.endswith("gave no answer within 0.1 s (reward_timeout)")
        reward.close()


@pytest.mark.slow
def test_the_command_serves_a_run_and_stops_when_all_is_scored(tmp_path: Path, call: Call) -> None:
    command = [sys.executable, "-m", "grpokit", "serve-reward", "length", "maximum=3", "scale=0.1", "--port=0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        address = process.stdout.readline().split(" at ")[1].split()[0]

        def placed(**changes: Any) -> Path:
            there = {"use": "length", "maximum": 3, "scale": 0.1, "placement": {"http": address}, **changes}
            mine = {"use": "tiny_policies:digit_sum", "weight": 0.5}
            return config(tmp_path, rewards=[mine, there], trainer__steps=1)

        complaint = call("train", placed(maximum=4)).err
        assert "serves length maximum=3 scale=0.1 in protocol 1, and the run asks for length maximum=4 " in complaint
        done = call("train", placed())
        assert done.code == 0, done.err
        process.send_signal(signal.SIGTERM)
        stopped = "stopping: what is being scored is finished first\nscored 32 samples\n"
        assert process.stdout.read() == stopped
    assert process.returncode == 0
    here = call("train", config(tmp_path, trainer__steps=1, run__dir="here"))
    assert here.out.splitlines()[-4:-1] == done.out.splitlines()[-4:-1]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("length", "--host", "0.0.0.0"), "error: Without a token anybody who reaches 0.0.0.0 could use the reward."),
        (("length", "--token-file", "nowhere"), "error: The token file nowhere does not exist"),
        (("lenght",), "error: There is no reward called 'lenght'"),
        (("length", "maximum"), "error: The parameter 'maximum' is not of the form"),
        (("length", "--host", "300.1.1.1"), "error: Without a token anybody who reaches 300.1.1.1"),
    ],
)
def test_mistakes_are_one_message(words: tuple[str, ...], message: str, call: Call) -> None:
    done = call("serve-reward", *words)
    assert done.code == 2
    assert done.err.startswith(message)
