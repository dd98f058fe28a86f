"""What policies over models of Hugging Face share: a library without components of its own.

`models` loads, adapts, freezes and saves a model of transformers, `tokens` draws and scores tokens, `cpu` makes both
quicker on a CPU, `diffusion` has the policy of flow-matching pipelines, and `plan` counts memory and time. Importing
the package is cheap; torch, transformers and peft come with the modules.
"""

__version__ = "0.1.0"
