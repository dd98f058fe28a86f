"""Flow-matching pipelines of diffusers as policies for grpokit.

Importing the package is cheap; torch, transformers and diffusers come with the modules that need them.
"""

__version__ = "0.1.0"
