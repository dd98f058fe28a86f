"""Every Hugging Face causal language model as a policy for grpokit.

Importing the package is cheap; torch and transformers come with the policy's modules.
"""

__version__ = "0.1.0"
