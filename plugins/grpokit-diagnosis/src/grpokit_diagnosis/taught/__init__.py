"""What a reward taught: what changed in the outputs of a policy, and what explains the reward."""
