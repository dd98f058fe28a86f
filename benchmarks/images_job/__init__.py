"""The parts of `benchmarks/images.py`: two jobs, grpokit on each, and what people would write otherwise."""
