"""How well and how fast environments are learned: grpokit's presets beside Stable-Baselines3's PPO, on one thread.

    python benchmarks/episodes.py --prepare          # once: an environment with Stable-Baselines3, beside this one
    python benchmarks/episodes.py                    # CartPole-v1 and Pendulum-v1 on five seeds, printed
    python benchmarks/episodes.py --write            # and written into docs/benchmarks.md

Both may take the same number of steps of the environment. Then each plays 100 episodes with its most likely actions,
from starts that neither has seen. PPO has the settings that RL Baselines3 Zoo has tuned for these environments. Frames
per second are steps of the environment by the seconds of training, and the contenders take turns.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from peers import CACHE, prepare

HERE = Path(__file__)
PAGE, PINS = HERE.parents[1] / "docs" / "benchmarks.md", HERE.with_name("gym_peers.txt")
BUDGETS = {"gym-cartpole": (50_000, 100_000), "gym-pendulum": (100_000, 300_000)}
ENVIRONMENTS = {"gym-cartpole": "CartPole-v1", "gym-pendulum": "Pendulum-v1"}
EPISODES = 100
ZOO: dict[str, dict[str, Any]] = {
    "gym-cartpole": {
        "n_steps": 32, "batch_size": 256, "gae_lambda": 0.8, "gamma": 0.98, "n_epochs": 20, "ent_coef": 0.0,
        "learning_rate": lambda left: 1e-3 * left, "clip_range": lambda left: 0.2 * left,
    },
    "gym-pendulum": {
        "n_steps": 1024, "gae_lambda": 0.95, "gamma": 0.9, "n_epochs": 10, "ent_coef": 0.0, "learning_rate": 1e-3,
        "clip_range": 0.2, "use_sde": True, "sde_sample_freq": 4,
    },
}  # fmt: skip
PARALLEL = {"gym-cartpole": 8, "gym-pendulum": 4}


def grpokit_run(preset: str, budget: int, seed: int) -> dict[str, float]:
    """Train by the preset, up to the step that uses the budget up."""
    from grpokit import Prompt
    from grpokit.config import presets
    from grpokit.runs import build, build_rewards
    from grpokit.sampling import derive_seeds

    config, _ = presets.read_config(preset, [f"seed={seed}", f"policy.seed={seed}", "trainer.steps=100000"])
    policies = build.policies(config)
    trainer = build.trainer(config, policies, build_rewards.rewards(config), build.prompts(config)[0])
    frames, begin = 0, time.perf_counter()
    while frames < budget:
        frames += int(trainer.step().rollout.mask.sum())
    seconds = time.perf_counter() - begin
    seeds = derive_seeds(12345, stream="evaluate", step=0, prompts=EPISODES, group_size=1)
    played = policies[""].rollout([Prompt(text="start")] * EPISODES, 1, seeds=seeds, evaluate=True)
    returns = [sample.info["return"] for sample in played.samples]
    return {"return": statistics.mean(returns), "frames": frames, "seconds": seconds}


def ppo_run(preset: str, budget: int, seed: int) -> dict[str, float]:
    """Train PPO in this process, which has Stable-Baselines3."""
    import gymnasium
    import torch
    from stable_baselines3 import PPO
    from stable_baselines3.common.env_util import make_vec_env

    torch.set_num_threads(1)
    name = ENVIRONMENTS[preset]
    model = PPO("MlpPolicy", make_vec_env(name, PARALLEL[preset], seed=seed), seed=seed, device="cpu", **ZOO[preset])
    begin = time.perf_counter()
    model.learn(budget)
    seconds = time.perf_counter() - begin
    env, returns = gymnasium.make(name), []
    for episode in range(EPISODES):
        seen, _ = env.reset(seed=10**6 + episode)
        total, over = 0.0, False
        while not over:
            seen, reward, ended, cut, _ = env.step(model.predict(seen, deterministic=True)[0])
            total, over = total + float(reward), ended or cut
        returns.append(total)
    return {"return": statistics.mean(returns), "frames": model.num_timesteps, "seconds": seconds}


def main() -> None:
    """Print or write the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--prepare", action="store_true", help="make the environment of Stable-Baselines3, and stop")
    parser.add_argument("--peers", type=Path, default=CACHE / "gym_peers", help="where it is (default: %(default)s)")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the table into docs/benchmarks.md")
    parser.add_argument("--one", nargs=4, help=argparse.SUPPRESS)  # contender, preset, budget, seed: in its own process
    given = parser.parse_args()
    if given.prepare:
        prepare(given.peers, PINS, same=("torch", "gymnasium"))
    elif given.one:
        contender, preset, budget, seed = given.one
        print(json.dumps({"grpokit": grpokit_run, "PPO": ppo_run}[contender](preset, int(budget), int(seed))))
    else:
        text = table(given.peers.absolute() / "bin" / "python", given.seeds)
        print(text)
        if given.write:
            from lm_job.tables import write  # not in the peer's environment

            write(PAGE, "episodes", text)


def table(peer: Path, seeds: int) -> str:
    """All runs, as lines of Markdown."""
    lines = [
        "| environment | steps of it | contender | mean return of each seed | frames per second, PPO = 1 |",
        "|---|---|---|---|---|",
    ]
    for preset, budgets in BUDGETS.items():
        for budget in budgets:
            runs: dict[str, list[dict[str, float]]] = {"grpokit": [], "PPO": []}
            for seed in range(seeds):
                for contender, done in runs.items():
                    python = sys.executable if contender == "grpokit" else str(peer)
                    done.append(_one(python, contender, preset, budget, seed))
            speeds = {name: statistics.median(r["frames"] / r["seconds"] for r in done) for name, done in runs.items()}
            for contender, done in runs.items():
                returns = ", ".join(f"{run['return']:.0f}" for run in done)
                speed = speeds[contender] / speeds["PPO"]
                lines.append(f"| {ENVIRONMENTS[preset]} | {budget:,} | {contender} | {returns} | {speed:.1f} |")
                print(lines[-1], f"{speeds[contender]:,.0f} frames per second", file=sys.stderr)
    return "\n".join(lines)


def _one(python: str, contender: str, preset: str, budget: int, seed: int) -> dict[str, float]:
    command = [python, str(HERE), "--one", contender, preset, str(budget), str(seed)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if contender == "PPO":
        environment.pop("PYTHONPATH", None)
    run = subprocess.run(command, env=environment, capture_output=True, text=True)
    if run.returncode:
        sys.exit(f"episodes.py: {contender} failed:\n{run.stderr}")
    answer: dict[str, float] = json.loads(run.stdout.splitlines()[-1])
    return answer


if __name__ == "__main__":
    main()
