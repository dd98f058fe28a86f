"""What a training step uses; `grpokit.trainer` puts it together. Private, except where the API page names it."""
