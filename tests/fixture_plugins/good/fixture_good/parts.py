"""What the plugin's specs name."""


def vowels(samples, scale, *, upper=False):
    """`scale` has no default: it must be given."""
    letters = "AEIOU" if upper else "aeiou"
    return [scale * sum(c in letters for c in s.output) for s in samples]


class Letters:
    def __init__(self, letter, minimum=0):
        if not isinstance(letter, str):
            raise TypeError(f"letter is {letter!r}")
        self.letter, self.minimum = letter, minimum

    def __call__(self, samples):
        return [max(self.minimum, s.output.count(self.letter)) for s in samples]


class HalfAPolicy:
    def rollout(self, prompts, group_size, *, seeds, evaluate=False):
        raise NotImplementedError

    def modules(self):
        return {}


def plain(rewards, weights, groups, *, shift=0.0):
    return rewards @ weights.to(rewards) + shift


def mine(*, clip_range=0.2):
    return f"an objective with {clip_range}"
