"""The parts of a training step, which `grpokit.trainer` puts together. Private, except for names on the API page."""
