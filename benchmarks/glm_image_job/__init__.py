"""The parts of `benchmarks/glm_image.py`: a GLM-Image of full size, a meter, and what is measured."""
