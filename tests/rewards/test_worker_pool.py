"""Rewards in worker processes: what a crash, a hang or an exception costs; how many there are makes no odds."""

from __future__ import annotations

import math
import multiprocessing
import os
import resource
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import CancelledError
from pathlib import Path
from typing import Any

import pytest
import torch
from PIL import Image

from grpokit import DataError, PluginError, Prompt, RewardError, RewardTerm, Sample, UsageError
from grpokit.rewards.scoring import Scores, score_samples
from grpokit.rewards.worker_pool import PooledReward
from pool_rewards import obey

Make = Callable[..., PooledReward]
HELPERS = Path(__file__).parents[1] / "helpers"
PATHS = {"PYTHONPATH": os.pathsep.join([str(HELPERS), *sys.path])}  # for scripts of their own


@pytest.fixture
def pooled() -> Iterator[Make]:
    made: list[PooledReward] = []

    def make(function: str, params: dict[str, Any] | None = None, **options: Any) -> PooledReward:
        made.append(PooledReward(f"pool_rewards:{function}", params, **options))
        return made[-1]

    yield make
    for reward in made:
        reward.close()


def samples(*outputs: Any, size: int = 2) -> list[Sample]:
    return [Sample(prompt=Prompt(text=f"prompt {i // size}"), output=x, group=i // size) for i, x in enumerate(outputs)]


def asked(reward: PooledReward, given: list[Sample], **options: Any) -> Scores:
    return score_samples([RewardTerm(name="r", reward=reward, **options)], given)


def column(reward: PooledReward, given: list[Sample], **options: Any) -> list[float]:
    return asked(reward, given, **options).matrix[:, 0].tolist()


@pytest.mark.parametrize("per_sample", [True, False])
@pytest.mark.parametrize("workers", [1, 3])
def test_scores_are_those_of_one_process_in_the_same_order(pooled: Make, workers: int, per_sample: bool) -> None:
    outputs = [f"{i / 7:.17f}" for i in range(24)]
    reward = pooled("obey", workers=workers, per_sample=per_sample)
    assert column(reward, samples(*outputs, size=4)) == obey(samples(*outputs))


def test_a_reward_without_a_spec_gets_whole_groups(pooled: Make) -> None:
    reward = pooled("group_mean", workers=2)
    mixed = samples("1", "3", "10", "30")
    assert column(reward, [mixed[i] for i in (0, 2, 1, 3)]) == [-1.0, -10.0, 1.0, 10.0]
    assert not reward.per_sample
    assert PooledReward("length").per_sample  # its spec says so


def test_answers_may_be_arrays_and_samples_may_hold_pictures(pooled: Make) -> None:
    for reward in ("array", "arrays_of_one"):
        assert column(pooled(reward), samples("0.5", "0.25")) == [0.5, 0.25]
    picture = Image.new("RGB", (300, 300), "red")
    given = [Sample(prompt=Prompt(text="p", target=picture), output="2", group=0)]
    assert column(pooled("obey"), given) == [2.0]


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ("kill", "lost its worker process, which was ended by SIGKILL, on row 2 (prompt 'prompt 1')"),
        pytest.param(
            "leave",
            "lost its worker process, which ended with exit code 3, on row 2 (prompt 'prompt 1')",
            marks=pytest.mark.slow,
        ),
        ("hang", "gave no answer within 1 s (reward_timeout) on row 2 (prompt 'prompt 1')"),
        pytest.param(
            "stop", "gave no answer within 1 s (reward_timeout) on row 2 (prompt 'prompt 1')", marks=pytest.mark.slow
        ),
        ("raise", "raised ValueError: I do not like this one (pool_rewards.py, line "),
        pytest.param(
            "wordless",
            "raised WordlessError, whose message cannot be shown (pool_rewards.py, line ",
            marks=pytest.mark.slow,
        ),
        ("cancelled", "raised CancelledError (pool_rewards.py, line "),
        pytest.param("generator-exit", "raised GeneratorExit (pool_rewards.py, line ", marks=pytest.mark.slow),
        pytest.param(
            "orphan",
            "lost its worker process, which ended with exit code 3, on row 2 (prompt 'prompt 1')",
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_failure_is_an_error_of_its_row(pooled: Make, order: str, words: str) -> None:
    reward = pooled("obey", workers=2, timeout=1, per_sample=True)
    given = samples("0", "1", order, "3", "4", "5")
    with pytest.raises(RewardError) as caught:
        asked(reward, given)
    assert str(caught.value).startswith(f"Reward 'r' {words}")
    assert str(caught.value).endswith(
        ". Correct it, or set `on_error: skip` in its config to count its rows as unscored."
    )
    found = asked(reward, given, on_error="skip")
    assert found.matrix[:, 0].nan_to_num(nan=-1).tolist() == [0, 1, -1, 3, 4, 5]
    assert found.failed == [1]
    assert found.notes[0].startswith(f"Reward 'r' left 1 row unscored: it {words}")
    assert column(reward, samples("7", "8")) == [7.0, 8.0]  # the lost process has been replaced


def test_a_group_fails_as_one_where_calls_get_groups(pooled: Make) -> None:
    found = asked(pooled("obey", workers=2), samples("0", "1", "kill", "3", "4", "5"), on_error="skip")
    assert found.matrix[:, 0].nan_to_num(nan=-1).tolist() == [0, 1, -1, -1, 4, 5]
    assert found.failed == [2]
    assert "on rows 2-3 (prompt 'prompt 1')" in found.notes[0]


def test_skipping_has_a_limit(pooled: Make) -> None:
    reward = pooled("obey", workers=2, per_sample=True)
    with pytest.raises(RewardError, match=r"lost 2 of 4 rows; skip_limit allows a share of 0\.25"):
        asked(reward, samples("kill", "raise", "1", "2"), on_error="skip", skip_limit=0.25)


def test_many_failures_are_told_by_three(pooled: Make) -> None:
    reward = pooled("obey", workers=2, per_sample=True)
    (note,) = asked(reward, samples(*["raise"] * 5, "1"), on_error="skip", skip_limit=1).notes
    assert note.startswith("Reward 'r' left 5 rows unscored: it raised ValueError")
    assert note.count("raised") == 3
    assert note.endswith(" on row 2 (prompt 'prompt 1'), and 2 other calls failed.")


@pytest.mark.slow
def test_the_first_failing_row_is_named_whoever_fails_first(pooled: Make) -> None:
    reward = pooled("obey", workers=2, timeout=1, per_sample=True)
    for _ in range(3):
        with pytest.raises(RewardError, match=r"on row 1 \("):
            asked(reward, samples("0", "hang", "raise", "raise"))


def test_a_process_that_dies_while_idle_costs_nothing(pooled: Make) -> None:
    reward = pooled("obey", workers=2, per_sample=True)
    first = {int(x) for x in column(reward, samples(*["pid"] * 12))}
    for child in multiprocessing.active_children():
        child.kill()
        child.join()
    found = asked(reward, samples(*["pid"] * 12))
    second = {int(x) for x in found.matrix[:, 0].tolist()}
    assert found.failed == [0]
    assert not first & second


def test_nan_is_unscored_and_nonsense_stops(pooled: Make) -> None:
    reward = pooled("obey", per_sample=True)
    assert math.isnan(column(reward, samples("nan", "1"))[0])
    for order, words in (
        ("inf", r"Reward 'r': it gave inf for row 1 \(prompt 'prompt 0'\)"),
        ("none", r"Reward 'r': it gave .* \(NoneType\) for row 1 \(prompt 'prompt 0'\)"),
    ):
        with pytest.raises(RewardError, match=words):
            column(reward, samples("1", order), on_error="skip")
    with pytest.raises(RewardError, match="Reward 'r': it returned 1 score for 2 samples"):
        column(pooled("short"), samples("1", "1"), on_error="skip")
    with pytest.raises(RewardError, match="Reward 'r': it returned a generator; expected one number per sample"):
        column(pooled("generator"), samples("1", "1"), on_error="skip")


def test_a_wrong_target_is_never_skipped(pooled: Make) -> None:
    with pytest.raises(DataError, match=r"^Reward 'r': the target is no number$"):
        column(pooled("obey"), samples("1", "target"), on_error="skip")


def test_a_sample_that_cannot_be_sent(pooled: Make) -> None:
    with pytest.raises(UsageError, match=r"Reward 'r': samples cannot be sent to its worker .*Remove `workers`"):
        column(pooled("obey"), samples(lambda: 1, "2"))


@pytest.mark.parametrize(
    ("use", "params", "kind", "words"),
    [
        ("pool_rewards:Built", {"mode": "usage"}, UsageError, r"Weights 'w.pt' are missing\. Run: fetch w.pt"),
        ("pool_rewards:Built", {"mode": "crash"}, PluginError, r"KeyError: 'no such thing'"),
        (
            "pool_rewards:Built",
            {"mode": "die"},
            PluginError,
            r"lost its worker process, which ended with exit code 7, before it was built",
        ),
        ("pool_rewards:Built", {"colour": 1}, PluginError, r"no parameter 'colour'.*It accepts: mode='good'"),
        ("pool_rewards:nothing", {}, PluginError, r"no such function or class"),
    ],
)
def test_what_cannot_be_built_says_so_at_the_start(
    use: str, params: dict[str, Any], kind: type[Exception], words: str
) -> None:
    with pytest.raises(kind, match=words):
        PooledReward(use, params, workers=2).start()


def test_numbers_out_of_range() -> None:
    with pytest.raises(UsageError, match=r"workers must be at least 1, got 0\."):
        PooledReward("length", workers=0)
    with pytest.raises(UsageError, match=r"reward_timeout must be above 0 seconds, got 0\."):
        PooledReward("length", timeout=0)


def test_called_directly(pooled: Make) -> None:
    reward = pooled("obey", workers=2, per_sample=True)
    assert reward(samples("1", "2", "3")) == [1.0, 2.0, 3.0]
    assert pooled("obey")(samples("1", "2", "3", "4")) == [1.0, 2.0, 3.0, 4.0]  # two rows to a call
    with pytest.raises(RewardError, match=r"Reward 'pool_rewards:obey' lost its worker .* on row 1 \(prompt"):
        reward(samples("1", "kill"))
    with pytest.raises(RewardError, match=r"'pool_rewards:obey': it gave inf for row 1 \(prompt 'prompt 0'\)"):
        reward(samples("1", "inf"))
    with pytest.raises(RewardError, match=r"'pool_rewards:short': it returned 1 score for 2 samples, from row 0 on"):
        pooled("short")(samples("1", "1", "1", "1"))


@pytest.mark.slow
def test_it_works_beside_the_other_rewards(pooled: Make) -> None:
    rewards = [pooled("slow", workers=2, per_sample=True), pooled("slow", workers=1, per_sample=True)]
    for reward in rewards:
        reward.start()
        reward(samples("1", "1", "1", "1"))  # all processes stand
    given = samples("1", "2", "3", "4")

    def own(batch: Any) -> list[float]:
        time.sleep(0.8)
        return [float(s.output) for s in batch]

    start = time.perf_counter()
    found = score_samples([RewardTerm(name=str(i), reward=r) for i, r in enumerate([*rewards, own])], given)
    whole = time.perf_counter() - start
    assert found.matrix.tolist() == [[float(x)] * 3 for x in (1, 2, 3, 4)]
    assert whole < 0.75 * (0.4 + 0.8 + 0.8)  # what one after the other would take
    assert found.seconds[0] < found.seconds[1] < whole


def test_a_process_that_dies_while_it_is_built_anew_costs_its_rows(pooled: Make, tmp_path: Path) -> None:
    reward = pooled("Mortal", {"marks": str(tmp_path)}, per_sample=True)
    found = asked(reward, samples("1", "2", "kill", "4"), on_error="skip")
    assert found.matrix[:, 0].nan_to_num(nan=-1).tolist() == [1, 2, -1, -1]
    assert found.notes == [
        "Reward 'r' left 2 rows unscored: it lost its worker process, which was ended by SIGKILL, on row 2 (prompt "
        "'prompt 1'); it lost its worker process, which was ended by SIGKILL, on row 3 (prompt 'prompt 1')."
    ]
    (tmp_path / "built").unlink()
    assert column(reward, samples("5", "6")) == [5.0, 6.0]


def test_ctrl_c_does_not_reach_a_process_that_starts(pooled: Make) -> None:
    begun, stop = threading.Event(), threading.Event()

    def interrupt() -> None:
        while not stop.wait(0.01):
            for child in multiprocessing.active_children():
                if child.pid is not None and child.is_alive():
                    os.kill(child.pid, signal.SIGINT)
                    begun.set()

    thread = threading.Thread(target=interrupt)
    thread.start()
    try:
        reward = pooled("obey", workers=2, per_sample=True)
        assert column(reward, samples("1", "2", "3", "4")) == [1.0, 2.0, 3.0, 4.0]
    finally:
        stop.set()
        thread.join()
    assert begun.is_set()


@pytest.mark.slow
def test_a_program_that_hangs_is_ended_with_its_reward(pooled: Make, tmp_path: Path) -> None:
    place = tmp_path / "pid"
    with pytest.raises(RewardError, match=r"gave no answer within 3 s \(reward_timeout\)"):
        column(pooled("program", timeout=3), samples(str(place)))
    deadline = time.monotonic() + 10
    while _runs(int(place.read_text())) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not _runs(int(place.read_text()))


def _runs(pid: int) -> bool:
    state = Path(f"/proc/{pid}/stat")
    if Path("/proc").exists():  # where nobody collects orphans, a dead one stays as a zombie
        return state.exists() and state.read_text().rpartition(")")[2].split()[0] != "Z"
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def test_nothing_that_a_reward_made_is_unpickled_in_the_run(pooled: Make) -> None:
    """Reading it again would end the run's process, or print there."""
    assert column(pooled("odd"), samples("1")) == [1.0]
    words = r"^Reward 'r': it gave .* \(Evil\) for row 0 .*expected a number"
    with pytest.raises(RewardError, match=words):
        column(pooled("evil"), samples("1"), on_error="skip")


def test_tensors_are_sent_by_value(pooled: Make) -> None:
    given = torch.ones(3, 1000)
    assert column(pooled("tensor_sum"), samples(*given)) == [1000.0] * 3
    assert not given.is_shared()


def test_no_room_for_so_many_processes() -> None:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/dev/fd")) + 8, before[1]))
    try:
        with pytest.raises(UsageError, match=r"^a worker process for 'length' cannot be started .* fewer `workers`\."):
            PooledReward("length", workers=8).start()
        assert multiprocessing.active_children() == []
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_sigterm_to_all_processes_is_no_failure_of_the_reward(pooled: Make) -> None:
    """As service managers and schedulers send it; the run's own process decides."""
    reward = pooled("slow", {"seconds": 0.5}, workers=2, per_sample=True)
    reward.start()
    pending = reward.submit(samples("1", "2", "3", "4"))
    time.sleep(0.2)
    for process in multiprocessing.active_children():
        os.kill(process.pid or 0, signal.SIGTERM)
    found = list(pending)
    assert [portion.failure for portion in found] == [""] * 4
    assert [portion.values for portion in found] == [[1.0], [2.0], [3.0], [4.0]]


def script(folder: Path, body: str) -> Path:
    """A script whose guarded part is `body`; `ask(outputs)` hands samples out to `obey`."""
    path = folder / "script.py"
    path.write_text(
        textwrap.dedent("""
        import functools
        import time
        import torch
        from grpokit import Prompt, Sample
        from grpokit.rewards.worker_pool import PooledReward

        @functools.cache
        def reward(use):
            return PooledReward(f"pool_rewards:{use}", workers=2, per_sample=True)

        def ask(*outputs, use="obey"):
            return reward(use).submit([Sample(prompt=Prompt(text="p"), output=x, group=0) for x in outputs])

        if __name__ == "__main__":
        """)
        + textwrap.indent(textwrap.dedent(body), "    ")
    )
    return path


@pytest.mark.slow
def test_a_script_ends_quietly_though_its_rewards_hang(tmp_path: Path) -> None:
    """And a worker's torch has one thread, though the script imported torch before."""
    body = """
    print(*(portion.values for portion in ask("", use="torch_threads")))
    pending = ask("hang", "hang")  # and nothing is closed
    time.sleep(0.5)
    """
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"} | PATHS
    done = subprocess.run(
        [sys.executable, script(tmp_path, body)], capture_output=True, text=True, env=environment, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "[1.0]\n", "")


def test_what_nobody_began_is_called_off_when_an_answer_is_refused(pooled: Make, tmp_path: Path) -> None:
    reward = pooled("slow", {"seconds": 0.3}, workers=1, per_sample=True)
    with pytest.raises(RewardError, match="gave inf for row 0"):
        reward(samples("inf", *"12345678"))
    start = time.monotonic()
    assert reward(samples("1")) == [1.0]
    assert time.monotonic() - start < 1.5  # one that was begun, and its own; not eight


def test_what_nobody_began_is_called_off_when_it_is_closed(pooled: Make) -> None:
    before = {*threading.enumerate()}
    reward = pooled("slow", {"seconds": 5}, workers=1, per_sample=True)
    reward.start()
    pending = reward.submit(samples(*"12345678"))
    time.sleep(0.2)
    reward.close()
    with pytest.raises(CancelledError):
        list(pending)
    assert multiprocessing.active_children() == []
    assert {*threading.enumerate()} <= before


@pytest.mark.slow
def test_nothing_stays_behind_when_the_parent_is_killed(tmp_path: Path) -> None:
    body = """
    print(*{portion.values[0] for portion in ask(*["pid"] * 20)}, flush=True)
    ask("hang", "hang")
    time.sleep(60)
    """
    command = [sys.executable, script(tmp_path, body)]
    parent = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ | PATHS
    )
    assert parent.stdout is not None
    assert parent.stderr is not None
    pids = [int(float(pid)) for pid in parent.stdout.readline().split()]
    assert pids
    parent.kill()
    parent.wait()
    deadline = time.monotonic() + 20
    while any(Path(f"/proc/{pid}").exists() for pid in pids) and time.monotonic() < deadline:
        time.sleep(0.1)
    parent.stdout.close()
    with parent.stderr:
        if Path("/proc").exists():
            assert not [pid for pid in pids if Path(f"/proc/{pid}").exists()]
            assert parent.stderr.read() == ""


@pytest.mark.slow
def test_a_script_without_a_guard_is_told(tmp_path: Path) -> None:
    script = tmp_path / "unguarded.py"
    script.write_text(
        "from grpokit.rewards.worker_pool import PooledReward\nPooledReward('pool_rewards:obey', workers=1).start()\n"
    )
    environment = os.environ | PATHS
    done = subprocess.run([sys.executable, script], capture_output=True, text=True, env=environment, timeout=60)
    assert done.returncode == 1
    assert 'A script needs its own code under `if __name__ == "__main__":`' in done.stderr


def test_what_workers_print_is_shown_on_stderr(pooled: Make, capsys: pytest.CaptureFixture[str]) -> None:
    reward = pooled("talkative")
    assert column(reward, samples("1", "2")) == [1.0, 2.0]
    reward.close()
    shown = capsys.readouterr()
    assert shown.out == ""  # which may be the JSON lines of `grpokit evaluate`
    assert shown.err == f"first words\n{'x' * 100_000}\nof another program\n"


@pytest.mark.parametrize("order", ["return", "raise"])
def test_a_copy_that_a_reward_forks_answers_nothing(pooled: Make, order: str) -> None:
    outputs = [str(i) for i in range(40)]
    reward = pooled("forking", {"order": order}, workers=2, per_sample=True)
    assert column(reward, samples(*outputs, size=4)) == list(map(float, range(40)))


def test_an_answer_to_another_request_or_of_another_process_is_dropped(pooled: Make) -> None:
    reward = pooled("interfering", per_sample=True)  # one process: its requests are numbered from 1
    assert column(reward, samples("1", "2", "3", "4")) == [1.0, 2.0, 3.0, 4.0]


def test_a_reward_that_reorders_its_samples_is_refused(pooled: Make) -> None:
    with pytest.raises(RewardError, match=r"^Reward 'r': it changed the order or the number of the samples"):
        column(pooled("sorting"), samples("2", "1"), on_error="skip")
