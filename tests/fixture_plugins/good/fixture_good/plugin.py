"""Two rewards, a function and a class, an advantage, an objective, a preset, a command and all run events."""

from grpokit import (
    AdvantageSpec,
    CommandSpec,
    EvaluationSpec,
    ObjectiveSpec,
    Observer,
    PolicySpec,
    PresetSpec,
    RewardSpec,
    hookimpl,
)

EVENTS = []
SEEN = []


class Counter(Observer):
    """Counts steps."""

    def __init__(self):
        self.count = 0

    def updated(self, step):
        self.count += 1
        SEEN.append((step.number, self.count))
        return [f"counted {self.count}"] if self.count == 2 else []

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


@hookimpl
def grpokit_rewards():
    yield RewardSpec(
        api=1, name="vowels", factory="fixture_good.parts:vowels", accepts={"text"}, summary="counts a, e, i, o, u"
    )
    yield RewardSpec(api=1, name="letters", factory="fixture_good.parts:Letters", summary="wants [image] or [/text]")
    yield RewardSpec(api=1, name="no-such-function", factory="fixture_good.parts:vowel")


@hookimpl
def grpokit_commands():
    yield CommandSpec(api=1, name="greet", factory="fixture_good.greet:greet", summary="Greet someone.")


@hookimpl
def grpokit_policies():
    yield PolicySpec(api=1, name="half-a-policy", factory="fixture_good.parts:HalfAPolicy", makes="text")


@hookimpl
def grpokit_advantages():
    yield AdvantageSpec(api=1, name="plain", factory="fixture_good.parts:plain")


@hookimpl
def grpokit_objectives():
    yield ObjectiveSpec(api=1, name="mine", factory="fixture_good.parts:mine")


@hookimpl
def grpokit_presets():
    yield PresetSpec(api=1, name="quick", factory="fixture_good:quick.yaml", summary="a preset without its file")


@hookimpl
def grpokit_evaluations():
    yield EvaluationSpec(
        api=1, name="vowel-words", factory="fixture_good:vowels.yaml", summary="an evaluation", needs="ears"
    )


@hookimpl
def grpokit_observers():
    return {"counter": Counter()}


@hookimpl
def grpokit_run_start(folder, config):
    EVENTS.append(("start", folder.name, config["seed"]))


@hookimpl
def grpokit_step_end(report):
    EVENTS.append(("step", report.step))


@hookimpl
def grpokit_run_end(folder):
    EVENTS.append(("end", (folder / "report.html").is_file()))
