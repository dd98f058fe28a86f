"""Statistics: rewards that describe an output and do not judge it, for pictures, texts and episodes."""
