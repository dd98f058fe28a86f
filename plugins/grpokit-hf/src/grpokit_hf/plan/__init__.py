"""Memory and time of transformers that write tokens or denoise, for `grpokit plan`."""
