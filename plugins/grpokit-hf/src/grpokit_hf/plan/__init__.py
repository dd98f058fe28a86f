"""Memory and time of a transformer that writes tokens, for `grpokit plan`."""
