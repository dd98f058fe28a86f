"""Until `grpokit.remote.client` imports them from their home."""

from grpokit.rewards.elsewhere import ENDING as ENDING
from grpokit.rewards.elsewhere import Asking as Asking
