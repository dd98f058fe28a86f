"""A small server with vLLM's protocol around a tiny model: completions of token ids, and adapters that come and go."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import torch
from peft import PeftModel
from safetensors.torch import load_file

from grpokit_lm.loading import LoadSettings, load_model

MODEL = "grpokit_lm:models/arithmetic"


@dataclass
class Served:
    """The model behind a server, and what the test wants of it.

    Attributes:
        sharpness: logits are multiplied by this before a token is drawn; log-probs are those of that distribution.
        ignores_adapters: draw from the base whatever is asked for.
        failures: how many of the next requests are answered with 503.
        states_raw: log-probs are those before the temperature, top_k, top_p and min_p.
        delay: seconds before a request for completions is looked at.
        odd: path -> the bytes of another answer, or the address that it points to.
        adapters: the names that are loaded.
        asked: the bodies of all completions.
    """

    sharpness: float = 1.0
    ignores_adapters: bool = False
    states_raw: bool = False
    failures: int = 0
    delay: float = 0.0
    odd: dict[str, bytes | str] = field(default_factory=dict)
    adapters: dict[str, str] = field(default_factory=dict)
    asked: list[dict[str, Any]] = field(default_factory=list)
    url: str = ""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self.base = load_model(MODEL, LoadSettings(lora={}, dtype="float32", device="cpu")).model
        self.model: Any = self.base

    def load(self, name: str, folder: str) -> None:
        if isinstance(self.model, PeftModel):
            self.model.load_adapter(folder, name)
        else:
            self.model = PeftModel.from_pretrained(self.base, folder, adapter_name=name)
        self.model.eval()
        self.adapters[name] = folder

    def unload(self, name: str) -> None:
        del self.adapters[name]
        if self.adapters:
            self.model.set_adapter(next(iter(self.adapters)))
        self.model.delete_adapter(name)

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        tokens, places = self.draw(body)
        lowest = -9999.0  # JSON has no -inf
        stated = [{f"token_id:{id}": max(x, lowest) for id, x in place.items()} for place in places]
        logprobs = [place[token] for place, token in zip(places, tokens, strict=True)]
        return {
            "choices": [{"token_ids": tokens, "logprobs": {"token_logprobs": logprobs, "top_logprobs": stated}}],
        }

    @torch.inference_mode()
    def draw(self, body: dict[str, Any]) -> tuple[list[int], list[dict[int, float]]]:
        """Token ids, and in each one's place the log-probs of the likeliest tokens and of itself."""
        self.asked.append(body)
        self.model.set_adapter(body["model"])
        with self.model.disable_adapter() if self.ignores_adapters else nullcontext():
            return self._drawn(body)

    def _drawn(self, body: dict[str, Any]) -> tuple[list[int], list[dict[int, float]]]:
        generator = torch.Generator().manual_seed(body["seed"])
        tokens, places, cache = [], [], None
        new, heat = torch.tensor([body["prompt"]]), body["temperature"]
        penalty = body.get("repetition_penalty", 1.2)  # as where the model's own generation config has one
        while len(tokens) < body["max_tokens"]:
            output = self.model(input_ids=new, past_key_values=cache, use_cache=True)
            cache, logits = output.past_key_values, output.logits[0, -1] * self.sharpness
            if penalty != 1:
                seen = torch.tensor([*body["prompt"], *tokens])
                logits[seen] = torch.where(logits[seen] > 0, logits[seen] / penalty, logits[seen] * penalty)
            processed = _truncated(logits / (heat or 1.0), body).log_softmax(-1)
            token = int(processed.exp().multinomial(1, generator=generator) if heat else logits.argmax())
            stated = logits.log_softmax(-1) if self.states_raw else processed
            tokens.append(token)
            likeliest = [*stated.topk(min(body["logprobs"], len(stated))).indices.tolist(), token]
            places.append({id: float(stated[id]) for id in likeliest})
            new = torch.tensor([[token]])
            if token in body["stop_token_ids"]:
                break
        return tokens, places

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        return load_file(f"{self.adapters[name]}/adapter_model.safetensors")


def _truncated(logits: torch.Tensor, body: dict[str, Any]) -> torch.Tensor:
    """[V] with -inf for the tokens that min_p, top_k and top_p leave out, in vLLM's order."""
    p = logits.softmax(-1)
    logits = logits.masked_fill(p < body["min_p"] * p.max(), -torch.inf)
    if body["top_k"] > 0:
        logits = logits.masked_fill(logits < logits.topk(min(body["top_k"], len(logits))).values[-1], -torch.inf)
    ascending, order = logits.sort()
    out = ascending.softmax(-1).cumsum(-1) <= 1 - body["top_p"]
    out[-1] = False
    return logits.masked_fill(torch.zeros_like(out).scatter(0, order, out), -torch.inf)


@contextmanager
def served(**wanted: Any) -> Iterator[Served]:
    """A server for as long as the context lasts."""
    own = Served(**wanted)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None: ...

        def do_GET(self) -> None:
            if self._odd():
                return
            listed = [{"id": MODEL}, *({"id": name, "parent": MODEL} for name in own.adapters)]
            self._answer(200, {"data": listed})

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            if self._odd():
                return
            time.sleep(own.delay if self.path == "/v1/completions" else 0)
            with own.lock:
                if own.failures:
                    own.failures -= 1
                    self._answer(503, {"error": "busy"})
                elif self.path == "/v1/load_lora_adapter":
                    own.load(body["lora_name"], body["lora_path"])
                    self._answer(200, "Success")
                elif self.path == "/v1/unload_lora_adapter":
                    own.unload(body["lora_name"])
                    self._answer(200, "Success")
                elif body["model"] not in own.adapters:
                    self._answer(404, {"error": {"message": f"The model `{body['model']}` does not exist."}})
                else:
                    self._answer(200, own.complete(body))

        def _odd(self) -> bool:
            answer = own.odd.get(self.path)
            if isinstance(answer, str):
                self.send_response(302)
                self.send_header("Location", answer)
                self.send_header("Content-Length", "0")
                self.end_headers()
            elif answer is not None:
                self._send(200, answer)
            return answer is not None

        def _answer(self, status: int, content: Any) -> None:
            self._send(status, json.dumps(content).encode())

        def _send(self, status: int, text: bytes) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    own.url = f"http://127.0.0.1:{server.server_port}"
    try:
        yield own
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
