"""Worlds that import nothing of grpokit; they run in the tests' own process and in capsules."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time


class Game:
    """Guess a number; the world says higher or lower.

    A guess that is no number is an error, unless it is forgiven; `deadly` is one that costs the process.
    """

    def __init__(self, high=9, guesses=4, forgives=True, deadly=None):
        self.high, self.left, self.forgives, self.deadly = high, guesses, forgives, deadly
        self.found = False

    def start(self, prompt, seed):
        self.number = random.Random(seed).randint(1, self.high)
        return f"{prompt.text} Guess my number from 1 to {self.high}."

    def reply(self, text):
        self.left -= 1
        if text == self.deadly:
            os.kill(os.getpid(), 11)
        if not self.forgives:
            self.found = int(text) == self.number
        else:
            self.found = text.strip() == str(self.number)
        if self.found or not self.left:
            return None
        return "higher" if text.strip() < str(self.number) else "lower"

    def facts(self):
        return {"return": float(self.found), "left": self.left}


class AsTold:
    """Does what it reads; a text that is no order comes back."""

    tools = ({"type": "function", "function": {"name": "told", "description": "", "parameters": {}}},)
    open = 0

    def start(self, prompt, seed):
        AsTold.open += 1
        if prompt.text == "crash":
            os.kill(os.getpid(), 11)
        if prompt.text == "raise":
            raise ValueError("no such start")
        return {"role": "user", "content": f"{prompt.text} {seed}"}

    def reply(self, text):
        if text == "crash":
            os.kill(os.getpid(), 11)
        if text == "hang":
            time.sleep(1000)
        if text == "exit":
            sys.exit("no more of this")
        if text == "orphan":
            subprocess.Popen([sys.executable, "-c", "import time; time.sleep(1000)"], start_new_session=True)
        if text == "raise":
            raise KeyError("no such\n place.")
        if text == "object":
            return object()
        if text == "end":
            return None
        return [{"role": "tool", "content": text}]

    def close(self):
        AsTold.open -= 1

    def facts(self):
        return {"return": 1.5, "open": AsTold.open, "pair": (1, None)}


class Mute:
    def start(self, prompt, seed):
        pass


def echo():
    """A function that makes worlds, which lack all that is optional."""
    return Echo()


class Echo:
    def start(self, prompt, seed):
        return None

    def reply(self, text):
        return text
