"""The parts of `benchmarks/lm.py`: one GRPO job, its contenders, the machine's floor, and the table."""
